import com.alibaba.fastjson.JSONArray;
import com.alibaba.fastjson.JSONObject;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/**
 * Steps about what runs: where consumers say they stand, and clients with message trace on, which end
 * with the driver.
 */
final class Operations {
    /** Clients that trace: one that ends at once takes what it has not told yet with it. */
    private static final List<Runnable> OPEN = new ArrayList<>();

    private Operations() {
    }

    /** positions: namesrv, group, topic: client, broker, queue and offset, as the consumers say. */
    static Object positions(JSONObject command) throws Exception {
        DefaultMQAdminExt admin = new DefaultMQAdminExt(10_000);
        admin.setNamesrvAddr(command.getString("namesrv"));
        admin.setInstanceName("positions" + System.nanoTime());
        admin.start();
        try {
            JSONArray rows = new JSONArray();
            admin.getConsumeStatus(command.getString("topic"), command.getString("group"), null)
                .forEach((client, queues) -> queues.forEach((queue, offset) -> {
                    JSONObject row = new JSONObject(true);
                    row.put("client", client);
                    row.put("broker", queue.getBrokerName());
                    row.put("queue", queue.getQueueId());
                    row.put("offset", offset);
                    rows.add(row);
                }));
            return rows;
        } finally {
            admin.shutdown();
        }
    }

    /** tracedSend: namesrv, group, topic, key: sends one message. */
    static Object send(JSONObject command) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer(command.getString("group"), true, null);
        producer.setNamesrvAddr(command.getString("namesrv"));
        producer.setInstanceName("traced" + System.nanoTime());
        producer.setSendMsgTimeout(10_000);
        producer.start();
        OPEN.add(producer::shutdown);
        byte[] body = "traced".getBytes(StandardCharsets.UTF_8);
        Message message = new Message(command.getString("topic"), body);
        message.setKeys(command.getString("key"));
        SendResult result = producer.send(message);
        return Facts.of(result);
    }

    /** tracedConsume: namesrv, group, topic: consumes one message; whether it came. */
    static Object consume(JSONObject command) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(command.getString("group"), true, null);
        Consumers.prepare(consumer, "traced", command);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(command.getString("topic"), "*");
        CountDownLatch left = new CountDownLatch(1);
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            left.countDown();
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        OPEN.add(consumer::shutdown);
        return left.await(40, TimeUnit.SECONDS);
    }

    /** Ends the clients that trace. */
    static void close() {
        OPEN.forEach(Runnable::run);
    }
}
