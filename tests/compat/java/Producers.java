import com.alibaba.fastjson.JSONArray;
import com.alibaba.fastjson.JSONObject;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.selector.SelectMessageQueueByHash;
import org.apache.rocketmq.common.MixAll;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageQueue;

/** Steps that send. One producer a name server and group, kept until the end. */
final class Producers {
    private final Map<String, DefaultMQProducer> started = new HashMap<>();
    private final Map<String, Hooks> hooks = new HashMap<>();

    /**
     * send: namesrv, group, topic, mode (sync, async, oneway, batch), count, prefix; optional tags[], delay, size, queue,
     * properties, timer (properties that only clients set), shard (the same value leads to the same queue), and for a new group namespace, packing (ZLIB, LZ4, ZSTD),
     * hooks, and accessKey with secretKey.
     */
    Object send(JSONObject command) throws Exception {
        DefaultMQProducer producer = producer(command);
        List<Message> messages = messages(command);
        MessageQueue queue = null;
        if (command.containsKey("queue")) {
            String broker = command.getString("broker");
            queue = new MessageQueue(command.getString("topic"), broker, command.getIntValue("queue"));
        }
        JSONArray results = new JSONArray();
        switch (command.getString("mode")) {
            case "sync":
                for (Message message : messages) {
                    results.add(Facts.of(sendSync(producer, message, queue, command.getString("shard"))));
                }
                break;
            case "async":
                results.addAll(sendAsync(producer, messages));
                break;
            case "oneway":
                for (Message message : messages) {
                    producer.sendOneway(message);
                }
                break;
            case "batch":
                results.add(Facts.of(producer.send(messages)));
                break;
            default:
                throw new IllegalArgumentException(command.getString("mode"));
        }
        return results;
    }

    private static SendResult sendSync(DefaultMQProducer producer, Message message, MessageQueue queue, String shard)
        throws Exception {
        if (shard != null) {
            return producer.send(message, new SelectMessageQueueByHash(), shard);
        }
        return queue == null ? producer.send(message) : producer.send(message, queue);
    }

    /** recall: namesrv, group, topic, handle: the id of the message that is taken back (RocketMQ 5). */
    Object recall(JSONObject command) throws Exception {
        DefaultMQProducer producer = producer(command);
        return producer.getClass().getMethod("recallMessage", String.class, String.class)
            .invoke(producer, command.getString("topic"), command.getString("handle"));
    }

    /** sendHooks: namesrv, group: what the hooks of a producer were told. */
    Object sendHooks(JSONObject command) {
        return hooks.get(command.getString("namesrv") + command.getString("group")).told();
    }

    private DefaultMQProducer producer(JSONObject command) throws Exception {
        String namesrv = command.getString("namesrv");
        String group = command.getString("group");
        DefaultMQProducer producer = started.get(namesrv + group);
        if (producer == null) {
            // The constructor reads it, and there is no other way to say so.
            System.setProperty(MixAll.MESSAGE_COMPRESS_TYPE, command.getOrDefault("packing", "ZLIB").toString());
            producer = new DefaultMQProducer(group, Accounts.hook(command));
            producer.setNamespace(command.getString("namespace"));
            producer.setNamesrvAddr(namesrv);
            producer.setInstanceName("producer" + started.size() + System.nanoTime());
            producer.setSendMsgTimeout(10_000);
            producer.setPollNameServerInterval(3_000);
            if (command.getBooleanValue("hooks")) {
                Hooks told = new Hooks();
                producer.getDefaultMQProducerImpl().registerSendMessageHook(told);
                producer.getDefaultMQProducerImpl().registerCheckForbiddenHook(told);
                hooks.put(namesrv + group, told);
            }
            producer.start();
            started.put(namesrv + group, producer);
        }
        return producer;
    }

    private static List<Message> messages(JSONObject command) {
        String topic = command.getString("topic");
        String prefix = command.getString("prefix");
        JSONArray tags = command.getJSONArray("tags");
        List<Message> messages = new ArrayList<>();
        for (int i = 0; i < command.getIntValue("count"); i++) {
            StringBuilder body = new StringBuilder(prefix + i);
            while (body.length() < command.getIntValue("size")) {
                body.append('x');
            }
            Message message = new Message(topic, body.toString().getBytes(StandardCharsets.UTF_8));
            message.setKeys(prefix + i);
            if (tags != null) {
                message.setTags(tags.getString(i % tags.size()));
            }
            if (command.getIntValue("delay") > 0) {
                message.setDelayTimeLevel(command.getIntValue("delay"));
            }
            JSONObject properties = command.getJSONObject("properties");
            if (properties != null) {
                properties.forEach((name, value) -> message.putUserProperty(name, value.toString()));
            }
            JSONObject timer = command.getJSONObject("timer");
            if (timer != null) {
                timer.forEach((name, value) -> MessageAccessor.putProperty(message, name, value.toString()));
            }
            messages.add(message);
        }
        return messages;
    }

    private static List<Object> sendAsync(DefaultMQProducer producer, List<Message> messages) throws Exception {
        Map<Integer, Object> results = new ConcurrentHashMap<>();
        CountDownLatch left = new CountDownLatch(messages.size());
        for (int i = 0; i < messages.size(); i++) {
            int place = i;
            producer.send(messages.get(i), new SendCallback() {
                @Override
                public void onSuccess(SendResult result) {
                    results.put(place, Facts.of(result));
                    left.countDown();
                }

                @Override
                public void onException(Throwable failure) {
                    results.put(place, failure.toString());
                    left.countDown();
                }
            });
        }
        if (!left.await(30, TimeUnit.SECONDS)) {
            throw new IllegalStateException(left.getCount() + " answers are missing");
        }
        List<Object> ordered = new ArrayList<>();
        for (int i = 0; i < messages.size(); i++) {
            ordered.add(results.get(i));
        }
        return ordered;
    }

    void close() {
        started.values().forEach(DefaultMQProducer::shutdown);
    }
}
