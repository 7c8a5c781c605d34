-- Queues of which a message is missing, or here more than once.
select
    queues.broker_name,
    queues.queue_id,
    queues.max_offset - queues.min_offset as messages,
    count(events.queue_offset) as found,
    count(distinct events.queue_offset) as found_once
from {{ ref('stg_queues') }} as queues
left join {{ ref('order_events') }} as events
    on events.broker_name = queues.broker_name
    and events.queue_id = queues.queue_id
    and events.queue_offset >= queues.min_offset
    and events.queue_offset < queues.max_offset
group by all
having found <> messages or found_once <> messages
