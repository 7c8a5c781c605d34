import com.alibaba.fastjson.JSONArray;
import com.alibaba.fastjson.JSONObject;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeSet;
import org.apache.rocketmq.client.ClientConfig;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.common.MixAll;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.common.protocol.heartbeat.MessageModel;

/** Steps that consume: push consumers that remember all they get, and one look at whole topics. */
final class Consumers {
    private final Map<String, DefaultMQPushConsumer> started = new HashMap<>();
    private final Map<String, List<JSONObject>> inboxes = new HashMap<>();
    private final Map<String, Hooks> hooks = new HashMap<>();

    /**
     * Gives a consumer of these tests its name server and a name of its own, and little patience.
     *
     * <p>One that rebalances while another of its threads sends a heartbeat leaves out its own ("lock
     * heartBeat, but failed"), and is refused its pulls (code 25) until the next: 30 s by default.
     */
    static void prepare(ClientConfig consumer, String name, JSONObject command) {
        consumer.setNamesrvAddr(command.getString("namesrv"));
        consumer.setInstanceName(name + System.nanoTime());
        consumer.setPollNameServerInterval(2_000);
        consumer.setHeartbeatBrokerInterval(5_000);
    }

    /**
     * consume: id, namesrv, group, topic, filter; optional model, orderly, failTimes (a message is
     * refused until it was redelivered so often), maxReconsume, sql (the filter is SQL92), from (FIRST_OFFSET,
     * LAST_OFFSET, TIMESTAMP with timestamp yyyyMMddHHmmss), strategy (see Strategies), namespace, hooks,
     * accessKey with secretKey.
     */
    Object start(JSONObject command) throws Exception {
        String id = command.getString("id");
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(
            command.getString("group"), Accounts.hook(command), new AllocateMessageQueueAveragely());
        prepare(consumer, id, command);
        consumer.setConsumeFromWhere(ConsumeFromWhere.valueOf("CONSUME_FROM_" + command.getOrDefault("from", "FIRST_OFFSET")));
        if (command.containsKey("timestamp")) {
            consumer.setConsumeTimestamp(command.getString("timestamp"));
        }
        consumer.setNamespace(command.getString("namespace"));
        consumer.setPersistConsumerOffsetInterval(1_000);
        consumer.setSuspendCurrentQueueTimeMillis(100);
        consumer.setConsumeThreadMin(4);
        consumer.setConsumeThreadMax(4);
        if (command.containsKey("model")) {
            consumer.setMessageModel(MessageModel.valueOf(command.getString("model")));
        }
        if (command.containsKey("maxReconsume")) {
            consumer.setMaxReconsumeTimes(command.getIntValue("maxReconsume"));
        }
        if (command.containsKey("strategy")) {
            consumer.setAllocateMessageQueueStrategy(Strategies.of(command));
        }
        if (command.getBooleanValue("sql")) {
            consumer.subscribe(command.getString("topic"), MessageSelector.bySql(command.getString("filter")));
        } else {
            consumer.subscribe(command.getString("topic"), command.getString("filter"));
        }
        if (command.getBooleanValue("hooks")) {
            Hooks told = new Hooks();
            consumer.getDefaultMQPushConsumerImpl().registerConsumeMessageHook(told);
            hooks.put(id, told);
        }
        List<JSONObject> inbox = new ArrayList<>();
        int failTimes = command.getIntValue("failTimes");
        if (command.getBooleanValue("orderly")) {
            consumer.registerMessageListener((MessageListenerOrderly) (messages, context) ->
                keep(inbox, messages) < failTimes
                    ? ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT
                    : ConsumeOrderlyStatus.SUCCESS);
        } else {
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                context.setDelayLevelWhenNextConsume(1);
                return keep(inbox, messages) < failTimes
                    ? ConsumeConcurrentlyStatus.RECONSUME_LATER
                    : ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
        }
        consumer.start();
        started.put(id, consumer);
        inboxes.put(id, inbox);
        JSONObject facts = new JSONObject(true);
        facts.put("clientId", consumer.getDefaultMQPushConsumerImpl().getmQClientFactory().getClientId());
        return facts;
    }

    /** Keeps what came; gives how often the first of them was delivered before. */
    private static int keep(List<JSONObject> inbox, List<MessageExt> messages) {
        synchronized (inbox) {
            for (MessageExt message : messages) {
                JSONObject fact = Facts.of(message);
                fact.put("thread", Thread.currentThread().getName());
                inbox.add(fact);
            }
            inbox.notifyAll();
        }
        return messages.get(0).getReconsumeTimes();
    }

    /** received: id, count, timeoutMs, settleMs: waits for so many, then for quiet, and tells all. */
    Object received(JSONObject command) throws Exception {
        List<JSONObject> inbox = inboxes.get(command.getString("id"));
        long deadline = System.currentTimeMillis() + command.getLongValue("timeoutMs");
        synchronized (inbox) {
            while (inbox.size() < command.getIntValue("count")) {
                long left = deadline - System.currentTimeMillis();
                if (left <= 0) {
                    break;
                }
                inbox.wait(left);
            }
            if (command.getLongValue("settleMs") > 0) {
                inbox.wait(command.getLongValue("settleMs"));
            }
            return new JSONArray(new ArrayList<>(inbox));
        }
    }

    /** assigned: id: the queues of its topic that a consumer has, in order. */
    Object assigned(JSONObject command) {
        JSONArray queues = new JSONArray();
        started.get(command.getString("id")).getDefaultMQPushConsumerImpl().getRebalanceImpl()
            .getProcessQueueTable().keySet().stream()
            .filter(queue -> !queue.getTopic().contains(MixAll.RETRY_GROUP_TOPIC_PREFIX))
            .map(MessageQueue::getQueueId).sorted().forEach(queues::add);
        return queues;
    }

    /** consumeHooks: id: what the hooks of a consumer were told. */
    Object consumeHooks(JSONObject command) {
        return hooks.get(command.getString("id")).told();
    }

    /** stop: id. */
    Object stop(JSONObject command) {
        started.remove(command.getString("id")).shutdown();
        inboxes.remove(command.getString("id"));
        return true;
    }

    /** pullAt: namesrv, topic, broker, queue, offset; optional filter: what one pull without waiting answers. */
    Object pullAt(JSONObject command) throws Exception {
        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer("pull-at");
        prepare(consumer, "pull", command);
        consumer.start();
        try {
            MessageQueue queue = new MessageQueue(
                command.getString("topic"), command.getString("broker"), command.getIntValue("queue"));
            PullResult result = consumer.pull(
                queue, command.getOrDefault("filter", "*").toString(), command.getLongValue("offset"), 32);
            JSONObject facts = new JSONObject(true);
            facts.put("status", result.getPullStatus().name());
            facts.put("found", result.getMsgFoundList() == null ? 0 : result.getMsgFoundList().size());
            facts.put("next", result.getNextBeginOffset());
            facts.put("min", result.getMinOffset());
            facts.put("max", result.getMaxOffset());
            return facts;
        } finally {
            consumer.shutdown();
        }
    }

    /** pullAll: namesrv, topic: every message of every queue, and each queue's limits. */
    Object pullAll(JSONObject command) throws Exception {
        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer("pull-all");
        prepare(consumer, "pull", command);
        consumer.start();
        JSONObject facts = new JSONObject(true);
        JSONArray messages = new JSONArray();
        JSONObject queues = new JSONObject(true);
        try {
            for (MessageQueue queue : new TreeSet<>(consumer.fetchSubscribeMessageQueues(command.getString("topic")))) {
                long next = consumer.minOffset(queue);
                JSONObject limits = new JSONObject(true);
                limits.put("min", next);
                limits.put("max", consumer.maxOffset(queue));
                queues.put(String.valueOf(queue.getQueueId()), limits);
                while (true) {
                    PullResult result = consumer.pull(queue, "*", next, 32);
                    if (result.getPullStatus() != PullStatus.FOUND) {
                        limits.put("end", result.getPullStatus().name());
                        break;
                    }
                    messages.addAll(Facts.of(result.getMsgFoundList()));
                    next = result.getNextBeginOffset();
                }
            }
        } finally {
            consumer.shutdown();
        }
        facts.put("queues", queues);
        facts.put("messages", messages);
        return facts;
    }

    void close() {
        started.values().forEach(DefaultMQPushConsumer::shutdown);
    }
}
