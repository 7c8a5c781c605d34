{{ config(materialized='incremental', incremental_strategy='append') }}

select events.*
from {{ ref('stg_order_events') }} as events
{% if is_incremental() %}
-- Offsets of a queue only grow, so what is new in a queue is what is above the highest one here.
left join (
    select broker_name, queue_id, max(queue_offset) as last_offset
    from {{ this }}
    group by broker_name, queue_id
) as known using (broker_name, queue_id)
where events.queue_offset > coalesce(known.last_offset, -1)
{% endif %}
