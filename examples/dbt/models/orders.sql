{{ config(materialized='table') }}

-- The newest event of each order, whole. All events of an order are in one queue while the topic has
-- the same queues; the time orders those from before a change.
select
    order_id,
    state,
    cents,
    min(stored_at) over (partition by order_id) as placed_at,
    stored_at as changed_at
from {{ ref('order_events') }}
where order_id is not null
qualify row_number() over (partition by order_id order by stored_at desc, queue_offset desc) = 1
