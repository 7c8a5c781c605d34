-- A body that is no order stays as a row without values, for the tests to find.
with messages as (
    select *, try_cast(try(decode(body)) as json) as event
    from {{ source('landing', 'orders') }}
    where topic = 'orders'
)

select
    concat_ws('/', broker_name, queue_id, queue_offset) as order_event_id,
    broker_name,
    queue_id,
    queue_offset,
    event ->> 'order' as order_id,
    event ->> 'state' as state,
    try_cast(event ->> 'cents' as bigint) as cents,
    store_timestamp as stored_at
from messages
