import com.alibaba.fastjson.JSONObject;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.message.Message;

/**
 * Steps of a producer that sends numbered messages from several threads until it is told to stop,
 * whatever fails. It looks for routes once, at the start.
 */
final class Steady {
    private final ConcurrentLinkedQueue<String> acked = new ConcurrentLinkedQueue<>();
    private final ConcurrentLinkedQueue<String> doubtful = new ConcurrentLinkedQueue<>();
    private final AtomicInteger number = new AtomicInteger();
    private final List<Thread> threads = new ArrayList<>();
    private DefaultMQProducer producer;
    private volatile boolean over;
    private long lastMs;
    private long longestMs;

    /** steady: namesrv, group, topic, threads. */
    Object start(JSONObject command) throws Exception {
        producer = new DefaultMQProducer(command.getString("group"));
        producer.setNamesrvAddr(command.getString("namesrv"));
        producer.setInstanceName("steady" + System.nanoTime());
        producer.setPollNameServerInterval(3_600_000);
        producer.setSendMsgTimeout(3_000);
        producer.start();
        lastMs = System.currentTimeMillis();
        for (int i = 0; i < command.getIntValue("threads"); i++) {
            Thread thread = new Thread(() -> send(command.getString("topic")));
            threads.add(thread);
            thread.start();
        }
        return true;
    }

    private void send(String topic) {
        while (!over) {
            String name = String.format("m%08d", number.getAndIncrement());
            try {
                Message message = new Message(topic, name.getBytes(StandardCharsets.UTF_8));
                if (producer.send(message).getSendStatus() != SendStatus.SEND_OK) {
                    throw new IllegalStateException("not safe");
                }
                acked.add(name);
                answered();
                Thread.sleep(2);
            } catch (Exception failure) {
                doubtful.add(name);
                pause();
            }
        }
    }

    private synchronized void answered() {
        long nowMs = System.currentTimeMillis();
        longestMs = Math.max(longestMs, nowMs - lastMs);
        lastMs = nowMs;
    }

    private static void pause() {
        try {
            Thread.sleep(20);
        } catch (InterruptedException end) {
            Thread.currentThread().interrupt();
        }
    }

    /** steadyCount: how many sends were acknowledged by now. */
    Object count(JSONObject command) {
        return acked.size();
    }

    /** steadyStop: what was acknowledged, what was not, and the longest time without an answer. */
    Object stop(JSONObject command) throws Exception {
        over = true;
        for (Thread thread : threads) {
            thread.join();
        }
        producer.shutdown();
        Map<String, Object> facts = new TreeMap<>();
        facts.put("acked", new ArrayList<>(acked));
        facts.put("doubtful", new ArrayList<>(doubtful));
        facts.put("longestMs", longestMs);
        return facts;
    }
}
