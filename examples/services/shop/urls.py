"""Views: an order with its message, and a message after the commit."""

from django.conf import settings
from django.db import connection, transaction
from django.http import HttpRequest, HttpResponse
from django.urls import path
from django.views.decorators.csrf import csrf_exempt

import cometmq
from examples.services.shop.messaging import client, outbox
from examples.services.shop.models import Order


@csrf_exempt
def order(request: HttpRequest, number: int) -> HttpResponse:
    """Store an order, and its message in the same transaction: both happen, or neither."""
    with transaction.atomic():
        Order.objects.create(number=number)
        message = cometmq.Message(settings.TOPIC, b"%d" % number, keys=(str(number),))
        outbox.add(connection, message)
        if "fail" in request.GET:
            transaction.set_rollback(True)
    return HttpResponse(status=202)


@csrf_exempt
def prompt(request: HttpRequest, number: int) -> HttpResponse:
    """Store an order, and send its message after the commit, without an outbox.

    This is quick to set up, but a process that ends between the two loses the message.
    """
    with transaction.atomic():
        Order.objects.create(number=number)
        transaction.on_commit(lambda: client().send(settings.TOPIC, b"%d" % number, keys=[number]))
        if "fail" in request.GET:
            transaction.set_rollback(True)
    return HttpResponse(status=202)


urlpatterns = [path("orders/<int:number>", order), path("prompt/<int:number>", prompt)]
