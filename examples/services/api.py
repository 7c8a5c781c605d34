"""An HTTP service with FastAPI: it sends in requests, and consumes as long as it runs."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

from fastapi import Depends, FastAPI, HTTPException, Request
from pydantic import BaseModel

import cometmq

TOPIC = os.environ.get("TOPIC", "orders")
#: Together with uvicorn's --timeout-graceful-shutdown less than the pod's grace period.
DRAIN_MS = 15_000


class Order(BaseModel):
    number: int


class Shop:
    """What requests and the consumer share."""

    def __init__(self, client: cometmq.Client) -> None:
        self.client = client
        self.orders = client.topic(TOPIC, Order, keys=lambda order: order.number)
        self.invoiced: list[int] = []

    async def invoice(self, message: cometmq.TypedMessage[Order]) -> None:
        await asyncio.sleep(0.02)  # here the service does its work
        self.invoiced.append(message.value.number)
        print(f"invoiced {message.value.number}", flush=True)


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    async with cometmq.Client(os.environ.get("NAME_SERVER", "127.0.0.1:9876")) as client:
        app.state.shop = shop = Shop(client)
        subscription = shop.orders.subscribe(group=f"{TOPIC}-invoices", start="first")
        app.state.consuming = consuming = asyncio.create_task(subscription.run(shop.invoice))
        try:
            yield
        finally:
            # uvicorn is here after SIGTERM, when the requests that it had are answered.
            if await client.drain(timeout_ms=DRAIN_MS):
                consuming.cancel()
            await asyncio.gather(consuming, return_exceptions=True)


def shop_of(request: Request) -> Shop:
    shop = request.app.state.shop
    assert isinstance(shop, Shop)
    return shop


app = FastAPI(lifespan=lifespan)


@app.post("/orders", status_code=202)
async def order(order: Order, shop: Annotated[Shop, Depends(shop_of)]) -> dict[str, str]:
    try:
        sent = await shop.orders.send(order, timeout_ms=2_000)
    except cometmq.ClientError as error:
        # The order may be stored: the caller tries again, and consumers drop the repeat.
        raise HTTPException(503, str(error)) from error
    return {"message_id": sent.message_id}


@app.get("/healthz")
async def alive(request: Request) -> dict[str, bool]:
    """For livenessProbe: the consumer still runs. A broker that is away is no reason to restart."""
    if request.app.state.consuming.done():
        raise HTTPException(503, "the consumer ended")
    return {"alive": True}


@app.get("/readyz")
async def ready(shop: Annotated[Shop, Depends(shop_of)]) -> dict[str, int]:
    """For readinessProbe: orders can be sent."""
    try:
        queues = await asyncio.wait_for(shop.client.queues(TOPIC, "write"), 2)
    except (cometmq.ClientError, TimeoutError) as error:
        raise HTTPException(503, str(error)) from error
    return {"queues": len(queues)}
