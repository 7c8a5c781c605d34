import com.alibaba.fastjson.JSONObject;
import java.io.ByteArrayOutputStream;
import java.io.PrintStream;
import java.lang.reflect.Field;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.client.QueryResult;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;
import org.apache.rocketmq.tools.command.MQAdminStartup;

/** Steps with RocketMQ's administration: the mqadmin commands as typed, and the calls behind them. */
final class Tools {
    private final Map<String, DefaultMQAdminExt> started = new HashMap<>();

    /** mqadmin: arguments[]: what the command prints. */
    Object mqadmin(JSONObject command) throws Exception {
        ByteArrayOutputStream printed = new ByteArrayOutputStream();
        PrintStream before = System.out;
        System.setOut(new PrintStream(printed, true, StandardCharsets.UTF_8));
        try {
            MQAdminStartup.main0(command.getJSONArray("arguments").toArray(new String[0]), null);
        } finally {
            System.setOut(before);
        }
        return printed.toString(StandardCharsets.UTF_8);
    }

    /**
     * command: arguments[], limitMs: what the command prints to each stream. One that runs for longer is
     * interrupted; "ended" says whether it came to an end.
     */
    Object command(JSONObject command) throws Exception {
        String[] arguments = command.getJSONArray("arguments").toArray(new String[0]);
        ByteArrayOutputStream printed = new ByteArrayOutputStream();
        ByteArrayOutputStream complained = new ByteArrayOutputStream();
        PrintStream out = System.out;
        PrintStream err = System.err;
        // Commands keep clients that they have closed: each run takes new ones.
        for (Field field : MQAdminStartup.class.getDeclaredFields()) {
            if (List.class.isAssignableFrom(field.getType())) {
                field.setAccessible(true);
                ((List<?>) field.get(null)).clear();
            }
        }
        Thread running = new Thread(() -> MQAdminStartup.main0(arguments, null));
        System.setOut(new PrintStream(printed, true, StandardCharsets.UTF_8));
        System.setErr(new PrintStream(complained, true, StandardCharsets.UTF_8));
        boolean ended;
        try {
            running.start();
            long end = System.currentTimeMillis() + command.getLongValue("limitMs");
            while (running.isAlive() && System.currentTimeMillis() < end) {
                running.join(10);
                if (isClosing(running)) {
                    running.interrupt();
                }
            }
            ended = !running.isAlive();
            running.interrupt();
            running.join(5_000);
        } finally {
            System.setOut(out);
            System.setErr(err);
        }
        JSONObject facts = new JSONObject(true);
        facts.put("out", printed.toString(StandardCharsets.UTF_8));
        facts.put("err", complained.toString(StandardCharsets.UTF_8));
        facts.put("ended", ended);
        return facts;
    }

    /** Whether a thread waits for the threads of a client that it closes: 3 s in RocketMQ 5. */
    private static boolean isClosing(Thread running) {
        for (StackTraceElement frame : running.getStackTrace()) {
            if (frame.getClassName().endsWith(".ServiceThread") && frame.getMethodName().equals("shutdown")) {
                return true;
            }
        }
        return false;
    }

    /** query: namesrv, topic, key: the messages that have the key. */
    Object query(JSONObject command) throws Exception {
        QueryResult result = admin(command)
            .queryMessage(command.getString("topic"), command.getString("key"), 64, 0, Long.MAX_VALUE);
        return Facts.of(result.getMessageList());
    }

    /** view: namesrv, topic, msgId: the message with the id. */
    Object view(JSONObject command) throws Exception {
        return Facts.of(admin(command).viewMessage(command.getString("topic"), command.getString("msgId")));
    }

    /** offsets: namesrv, topic, broker, queue, timestamp. */
    Object offsets(JSONObject command) throws Exception {
        DefaultMQAdminExt admin = admin(command);
        MessageQueue queue = new MessageQueue(
            command.getString("topic"), command.getString("broker"), command.getIntValue("queue"));
        JSONObject facts = new JSONObject(true);
        facts.put("min", admin.minOffset(queue));
        facts.put("max", admin.maxOffset(queue));
        facts.put("earliestStoreTime", admin.earliestMsgStoreTime(queue));
        facts.put("byTime", admin.searchOffset(queue, command.getLongValue("timestamp")));
        return facts;
    }

    private DefaultMQAdminExt admin(JSONObject command) throws Exception {
        String namesrv = command.getString("namesrv");
        DefaultMQAdminExt admin = started.get(namesrv);
        if (admin == null) {
            admin = new DefaultMQAdminExt(10_000);
            admin.setNamesrvAddr(namesrv);
            admin.setInstanceName("tools" + System.nanoTime());
            admin.start();
            started.put(namesrv, admin);
        }
        return admin;
    }

    void close() {
        started.values().forEach(DefaultMQAdminExt::shutdown);
    }
}
