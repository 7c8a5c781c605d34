{{ config(materialized='table') }}

-- All events of an order are in one queue, so the highest offset is the newest event.
select
    order_id,
    arg_max(state, queue_offset) as state,
    arg_max(cents, queue_offset) as cents,
    min(stored_at) as placed_at,
    max(stored_at) as changed_at
from {{ ref('order_events') }}
where order_id is not null
group by order_id
