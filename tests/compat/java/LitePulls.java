import com.alibaba.fastjson.JSONArray;
import com.alibaba.fastjson.JSONObject;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageQueue;

/** Steps of lite pull consumers: they subscribe or are assigned queues, and are polled. */
final class LitePulls {
    private final Map<String, DefaultLitePullConsumer> started = new HashMap<>();

    /** lite: id, namesrv, group, topic; with queues[] and broker it is assigned these, else it subscribes. */
    Object start(JSONObject command) throws Exception {
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer(command.getString("group"));
        Consumers.prepare(consumer, "lite", command);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setAutoCommit(false);
        if (!command.containsKey("queues")) {
            consumer.subscribe(command.getString("topic"), "*");
        }
        consumer.start();
        started.put(command.getString("id"), consumer);
        if (command.containsKey("queues")) {
            consumer.assign(queues(command));
        }
        return true;
    }

    private static List<MessageQueue> queues(JSONObject command) {
        List<MessageQueue> queues = new ArrayList<>();
        for (Object queue : command.getJSONArray("queues")) {
            queues.add(new MessageQueue(command.getString("topic"), command.getString("broker"), (Integer) queue));
        }
        return queues;
    }

    /** litePoll: id, count, timeoutMs: polls until so many came or the time is over. */
    Object poll(JSONObject command) {
        DefaultLitePullConsumer consumer = started.get(command.getString("id"));
        JSONArray found = new JSONArray();
        long deadline = System.currentTimeMillis() + command.getLongValue("timeoutMs");
        while (found.size() < command.getIntValue("count") && System.currentTimeMillis() < deadline) {
            found.addAll(Facts.of(consumer.poll(100)));
        }
        return found;
    }

    /** liteSeek: id, topic, broker, queues[], offset. */
    Object seek(JSONObject command) throws Exception {
        for (MessageQueue queue : queues(command)) {
            started.get(command.getString("id")).seek(queue, command.getLongValue("offset"));
        }
        return true;
    }

    /** litePause: id, topic, broker, queues[], paused. */
    Object pause(JSONObject command) {
        DefaultLitePullConsumer consumer = started.get(command.getString("id"));
        if (command.getBooleanValue("paused")) {
            consumer.pause(queues(command));
        } else {
            consumer.resume(queues(command));
        }
        return true;
    }

    /** liteCommit: id, topic, broker, queues[]: commits what was polled; gives each queue's committed offset. */
    Object commit(JSONObject command) throws Exception {
        DefaultLitePullConsumer consumer = started.get(command.getString("id"));
        consumer.commitSync();
        JSONArray offsets = new JSONArray();
        for (MessageQueue queue : queues(command)) {
            offsets.add(consumer.committed(queue));
        }
        return offsets;
    }

    /** liteStop: id. */
    Object stop(JSONObject command) {
        started.remove(command.getString("id")).shutdown();
        return true;
    }

    void close() {
        started.values().forEach(DefaultLitePullConsumer::shutdown);
    }
}
