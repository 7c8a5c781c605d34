import com.alibaba.fastjson.JSONObject;
import java.io.ByteArrayOutputStream;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
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
