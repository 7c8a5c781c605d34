import com.alibaba.fastjson.JSONArray;
import com.alibaba.fastjson.JSONObject;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.client.producer.TransactionSendResult;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/** Steps that send transactional messages, and those of request-reply. */
final class Transactions {
    private final Map<String, TransactionMQProducer> started = new HashMap<>();
    private final Map<String, Integer> checks = new ConcurrentHashMap<>();
    private final Map<String, DefaultMQProducer> askers = new HashMap<>();
    private final Map<String, DefaultMQPushConsumer> repliers = new HashMap<>();

    /**
     * transactions: namesrv, group, topic, states (by key: what the local transaction says, and what
     * a check says, such as UNKNOW,COMMIT_MESSAGE). One message for each key.
     */
    Object send(JSONObject command) throws Exception {
        JSONObject states = command.getJSONObject("states");
        TransactionMQProducer producer = new TransactionMQProducer(command.getString("group"));
        producer.setNamesrvAddr(command.getString("namesrv"));
        producer.setInstanceName("transactions" + System.nanoTime());
        producer.setSendMsgTimeout(10_000);
        producer.setTransactionListener(new TransactionListener() {
            @Override
            public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
                return state(states, message, 0);
            }

            @Override
            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                checks.merge(message.getKeys(), 1, Integer::sum);
                return state(states, message, 1);
            }
        });
        producer.start();
        started.put(command.getString("group"), producer);
        JSONArray results = new JSONArray();
        for (String key : states.keySet()) {
            Message message = new Message(command.getString("topic"), "tag", key, key.getBytes(StandardCharsets.UTF_8));
            TransactionSendResult result = producer.sendMessageInTransaction(message, null);
            JSONObject fact = Facts.of(result);
            fact.put("key", key);
            fact.put("state", result.getLocalTransactionState().name());
            fact.put("transactionId", result.getTransactionId());
            results.add(fact);
        }
        return results;
    }

    private static LocalTransactionState state(JSONObject states, Message message, int place) {
        return LocalTransactionState.valueOf(states.getString(message.getKeys()).split(",")[place]);
    }

    /** checks: how often each key was checked. */
    Object checks(JSONObject command) {
        return new JSONObject(new HashMap<String, Object>(checks));
    }

    /** request: namesrv, topic, body; gives the answer's body. */
    Object request(JSONObject command) throws Exception {
        String namesrv = command.getString("namesrv");
        DefaultMQProducer asker = askers.get(namesrv);
        if (asker == null) {
            asker = new DefaultMQProducer("java-askers");
            asker.setNamesrvAddr(namesrv);
            asker.setInstanceName("asker" + System.nanoTime());
            asker.setSendMsgTimeout(10_000);
            asker.start();
            askers.put(namesrv, asker);
        }
        byte[] body = command.getString("body").getBytes(StandardCharsets.UTF_8);
        return Facts.of((MessageExt) asker.request(new Message(command.getString("topic"), body), 20_000));
    }

    /** reply: namesrv, group, topic; answers every request with its body and " answered". */
    Object reply(JSONObject command) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer(command.getString("group") + "-answers");
        producer.setNamesrvAddr(command.getString("namesrv"));
        producer.setInstanceName("answers" + System.nanoTime());
        producer.setSendMsgTimeout(10_000);
        producer.start();
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(command.getString("group"));
        Consumers.prepare(consumer, "replier", command);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(command.getString("topic"), "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                try {
                    String body = new String(message.getBody(), StandardCharsets.UTF_8) + " answered";
                    producer.send(MessageUtil.createReplyMessage(message, body.getBytes(StandardCharsets.UTF_8)), 10_000);
                } catch (Exception failure) {
                    failure.printStackTrace();
                }
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        askers.put("answers" + command.getString("group") + command.getString("namesrv"), producer);
        repliers.put(command.getString("group") + command.getString("namesrv"), consumer);
        return "started";
    }

    void close() {
        started.values().forEach(DefaultMQProducer::shutdown);
        repliers.values().forEach(DefaultMQPushConsumer::shutdown);
        askers.values().forEach(DefaultMQProducer::shutdown);
    }
}
