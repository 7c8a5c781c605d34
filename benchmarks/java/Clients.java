import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * What Java's client does in a second; benchmarks/client_cases.py is CometMQ's counterpart and says
 * what each case does.
 *
 * Argument: NAMESRV. For each input line "CASE COUNT TOPIC SECONDS MESSAGES" it runs the case and
 * prints one JSON line.
 */
public final class Clients {
    private static final byte[] BODY = new byte[128];
    private static final int SAMPLE_EVERY = 64;
    private static final long TIMEOUT_MS = 20_000;

    private static String namesrv;
    private static DefaultMQProducer producer;
    private static DefaultMQProducer batching;
    private static DefaultMQProducer oneWay;
    private static TransactionMQProducer transacting;
    private static DefaultMQPushConsumer replier;
    private static long replierSince;

    private interface Step {
        int run() throws Exception;
    }

    public static void main(String[] words) throws Exception {
        PrintStream answers = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        System.setOut(System.err);
        namesrv = words[0];
        producer = new DefaultMQProducer("single-sends");
        start(producer);
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
        for (String line; (line = input.readLine()) != null; ) {
            String[] wanted = line.split(" ");
            answers.println(measure(
                wanted[0], Integer.parseInt(wanted[1]), wanted[2],
                (long) (Double.parseDouble(wanted[3]) * 1e9), Long.parseLong(wanted[4])));
        }
        System.exit(0);
    }

    private static void start(DefaultMQProducer made) throws Exception {
        made.setNamesrvAddr(namesrv);
        made.setSendMsgTimeout((int) TIMEOUT_MS);
        made.setInstanceName(made.getProducerGroup());
        made.start();
    }

    private static String measure(String name, int count, String topic, long nanos, long messages)
        throws Exception {
        switch (name) {
            case "single":
                return count == 1
                    ? threads(1, nanos, true, () -> { producer.send(message(topic)); return 1; })
                    : window(producer, count, topic, nanos);
            case "auto":
                return setUpBatching() ? window(batching, count, topic, nanos) : "{}";
            case "batch":
                return threads(4, nanos, false, () -> {
                    producer.send(new ArrayList<>(Collections.nCopies(count, message(topic))));
                    return count;
                });
            case "oneway":
                setUpOneWay();
                return threads(1, nanos, false, () -> {
                    oneWay.sendOneway(message(topic));
                    return 1;
                });
            case "transaction":
                setUpTransactions();
                return threads(count, nanos, false, () -> {
                    transacting.sendMessageInTransaction(message(topic), null);
                    return 1;
                });
            case "request":
                setUpReplier(topic);
                return threads(count, nanos, true, () -> {
                    producer.request(message(topic), TIMEOUT_MS);
                    return 1;
                });
            case "push":
                return push(topic, nanos, messages);
            case "pull":
                return pull(topic, nanos, messages);
            default:
                return "{}";
        }
    }

    private static Message message(String topic) {
        return new Message(topic, BODY);
    }

    /** Sends with callbacks, at most `size` of them at a time. */
    private static String window(DefaultMQProducer by, int size, String topic, long nanos)
        throws Exception {
        Semaphore room = new Semaphore(size);
        AtomicLong done = new AtomicLong();
        Samples samples = new Samples();
        AtomicInteger failed = new AtomicInteger();
        long begin = System.nanoTime();
        long end = begin + nanos;
        for (long number = 0; System.nanoTime() < end; number++) {
            room.acquire();
            long sent = number % SAMPLE_EVERY == 0 ? System.nanoTime() : 0;
            by.send(message(topic), new SendCallback() {
                @Override
                public void onSuccess(SendResult result) {
                    long now = System.nanoTime();
                    if (now < end) {
                        done.incrementAndGet();
                    }
                    if (sent != 0) {
                        samples.add(now - sent);
                    }
                    room.release();
                }

                @Override
                public void onException(Throwable error) {
                    failed.incrementAndGet();
                    room.release();
                }
            });
        }
        room.tryAcquire(size, TIMEOUT_MS, TimeUnit.MILLISECONDS);
        return result(done.get(), nanos, failed.get(), samples);
    }

    /** Repeats a step in `count` threads. */
    private static String threads(int count, long nanos, boolean isTimed, Step step)
        throws Exception {
        AtomicLong done = new AtomicLong();
        AtomicInteger failed = new AtomicInteger();
        Samples samples = new Samples();
        CountDownLatch over = new CountDownLatch(count);
        long end = System.nanoTime() + nanos;
        for (int n = 0; n < count; n++) {
            new Thread(() -> {
                for (long begin; (begin = System.nanoTime()) < end; ) {
                    try {
                        done.addAndGet(step.run());
                    } catch (Exception error) {
                        failed.incrementAndGet();
                    }
                    if (isTimed) {
                        samples.add(System.nanoTime() - begin);
                    }
                }
                over.countDown();
            }).start();
        }
        over.await();
        return result(done.get(), nanos, failed.get(), samples);
    }

    private static boolean setUpBatching() throws Exception {
        if (batching == null) {
            DefaultMQProducer made = new DefaultMQProducer("automatic-batches");
            try {
                made.getClass().getMethod("setAutoBatch", boolean.class);
            } catch (NoSuchMethodException error) {
                return false;
            }
            start(made);
            made.getClass().getMethod("setAutoBatch", boolean.class).invoke(made, true);
            batching = made;
        }
        return true;
    }

    /** A producer of their own: in 5.5.0 the thread of the connection can wait for itself. */
    private static void setUpOneWay() throws Exception {
        if (oneWay == null) {
            oneWay = new DefaultMQProducer("one-way-sends");
            start(oneWay);
        }
    }

    private static void setUpTransactions() throws Exception {
        if (transacting == null) {
            transacting = new TransactionMQProducer("transactions");
            transacting.setTransactionListener(new TransactionListener() {
                @Override
                public LocalTransactionState executeLocalTransaction(Message message, Object more) {
                    return LocalTransactionState.COMMIT_MESSAGE;
                }

                @Override
                public LocalTransactionState checkLocalTransaction(MessageExt message) {
                    return LocalTransactionState.COMMIT_MESSAGE;
                }
            });
            start(transacting);
        }
    }

    private static void setUpReplier(String topic) throws Exception {
        if (replier == null) {
            replierSince = System.currentTimeMillis();
            replier = new DefaultMQPushConsumer("repliers-" + System.nanoTime());
            replier.setNamesrvAddr(namesrv);
            replier.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
            replier.subscribe(topic, "*");
            replier.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                for (MessageExt each : messages) {
                    if (each.getStoreTimestamp() < replierSince) {
                        continue;
                    }
                    try {
                        producer.send(MessageUtil.createReplyMessage(each, BODY), TIMEOUT_MS);
                    } catch (Exception error) {
                        return ConsumeConcurrentlyStatus.RECONSUME_LATER;
                    }
                }
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
            replier.start();
            producer.request(message(topic), TIMEOUT_MS);
        }
    }

    private static String push(String topic, long nanos, long messages) throws Exception {
        AtomicLong heard = new AtomicLong();
        AtomicLong first = new AtomicLong();
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("push-" + System.nanoTime());
        consumer.setNamesrvAddr(namesrv);
        consumer.setInstanceName(consumer.getConsumerGroup());
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (given, context) -> {
            first.compareAndSet(0, System.nanoTime());
            heard.addAndGet(given.size());
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        while (first.get() == 0 || System.nanoTime() < first.get() + nanos && heard.get() < messages) {
            Thread.sleep(1);
        }
        String found = result(heard.get(), System.nanoTime() - first.get(), 0, new Samples());
        consumer.shutdown();
        return found;
    }

    private static String pull(String topic, long nanos, long messages) throws Exception {
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer("pull-" + System.nanoTime());
        consumer.setNamesrvAddr(namesrv);
        consumer.setInstanceName(consumer.getConsumerGroup());
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setPullBatchSize(32);
        consumer.subscribe(topic, "*");
        consumer.start();
        long heard = 0;
        while (heard == 0) {
            heard = consumer.poll().size();
        }
        long begin = System.nanoTime();
        while (System.nanoTime() < begin + nanos && heard < messages) {
            heard += consumer.poll().size();
        }
        String found = result(heard, System.nanoTime() - begin, 0, new Samples());
        consumer.shutdown();
        return found;
    }

    private static String result(long done, long nanos, int failed, Samples samples) {
        return String.format(
            "{\"per_s\":%.1f,\"failed\":%d,\"p50_us\":%.1f,\"p99_us\":%.1f}",
            done / (nanos / 1e9), failed, samples.at(50), samples.at(99));
    }

    private static final class Samples {
        private long[] values = new long[1 << 16];
        private int count;

        synchronized void add(long nanos) {
            if (count == values.length) {
                values = Arrays.copyOf(values, 2 * count);
            }
            values[count++] = nanos;
        }

        synchronized double at(int percent) {
            if (count == 0) {
                return 0;
            }
            long[] sorted = Arrays.copyOf(values, count);
            Arrays.sort(sorted);
            return sorted[Math.min(count - 1, count * percent / 100)] / 1e3;
        }
    }
}
