import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.concurrent.locks.LockSupport;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Measures the time from a send to the listener, with producer and push consumer in one JVM;
 * benchmarks/programs.py has CometMQ's counterpart, which takes the same arguments and lines.
 *
 * Arguments: NAMESRV TOPIC BODY_BYTES WARM_SECONDS. It first sends back to back as a warm-up and
 * prints "ready". For each input line "SECONDS PACE_US" it then sends a message every PACE_US and
 * prints one JSON line.
 */
public final class PushLatency {
    private static final int MAX_SAMPLES = 1 << 20;

    private static final long[] samples = new long[MAX_SAMPLES];
    private static int count;

    public static void main(String[] words) throws Exception {
        PrintStream answers = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        System.setOut(System.err);
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("latency-consumers");
        consumer.setNamesrvAddr(words[0]);
        consumer.subscribe(words[1], "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            long now = System.nanoTime();
            messages.forEach(message -> heard(message, now));
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        DefaultMQProducer producer = new DefaultMQProducer("latency-producers");
        producer.setNamesrvAddr(words[0]);
        producer.start();
        byte[] body = new byte[Integer.parseInt(words[2])];
        run(producer, words[1], body, Double.parseDouble(words[3]), 0);
        answers.println("ready");
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
        for (String line; (line = input.readLine()) != null; ) {
            String[] wanted = line.split(" ");
            forget();
            int sent = run(
                producer, words[1], body, Double.parseDouble(wanted[0]), Long.parseLong(wanted[1]));
            answers.println(result(sent));
        }
        producer.shutdown();
        consumer.shutdown();
        System.exit(0);
    }

    private static int run(DefaultMQProducer producer, String topic, byte[] body, double seconds,
        long paceMicros) throws Exception {
        long begin = System.nanoTime();
        long end = begin + (long) (seconds * 1e9);
        int sent = 0;
        for (; System.nanoTime() < end; sent++) {
            for (long next = begin + sent * paceMicros * 1000; System.nanoTime() < next; ) {
                LockSupport.parkNanos(next - System.nanoTime());
            }
            byte[] stamped = body.clone();
            ByteBuffer.wrap(stamped).putLong(System.nanoTime());
            producer.send(new Message(topic, stamped));
        }
        for (int waits = 0; waits < 100 && heardSoFar() < sent; waits++) {
            Thread.sleep(10);
        }
        return sent;
    }

    private static synchronized void heard(MessageExt message, long now) {
        if (count < MAX_SAMPLES) {
            samples[count++] = now - ByteBuffer.wrap(message.getBody()).getLong();
        }
    }

    private static synchronized int heardSoFar() {
        return count;
    }

    private static synchronized void forget() {
        count = 0;
    }

    private static synchronized String result(int sent) {
        long[] sorted = Arrays.copyOf(samples, count);
        Arrays.sort(sorted);
        return String.format("{\"sent\":%d,\"heard\":%d,\"p50_us\":%.1f,\"p99_us\":%.1f}",
            sent, count, sorted[count / 2] / 1e3, sorted[count * 99 / 100] / 1e3);
    }
}
