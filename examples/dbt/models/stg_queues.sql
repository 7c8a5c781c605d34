-- The queue has each offset from min_offset up to max_offset, which is the next one.
select
    queue.broker as broker_name,
    queue.queue as queue_id,
    queue.min_offset,
    queue.max_offset
from (
    select unnest(shown.queues) as queue
    from (select unnest(items) as shown from {{ source('broker', 'topic') }})
)
