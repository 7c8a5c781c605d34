import com.alibaba.fastjson.JSONArray;
import com.alibaba.fastjson.JSONObject;
import java.util.ArrayList;
import java.util.List;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.hook.CheckForbiddenContext;
import org.apache.rocketmq.client.hook.CheckForbiddenHook;
import org.apache.rocketmq.client.hook.ConsumeMessageContext;
import org.apache.rocketmq.client.hook.ConsumeMessageHook;
import org.apache.rocketmq.client.hook.SendMessageContext;
import org.apache.rocketmq.client.hook.SendMessageHook;

/** Hooks that write down what they are told, and forbid messages whose body begins with "forbidden". */
final class Hooks implements SendMessageHook, ConsumeMessageHook, CheckForbiddenHook {
    private final List<JSONObject> told = new ArrayList<>();

    @Override
    public String hookName() {
        return "told";
    }

    @Override
    public void checkForbidden(CheckForbiddenContext context) throws MQClientException {
        if (new String(context.getMessage().getBody()).startsWith("forbidden")) {
            throw new MQClientException("forbidden by a hook", null);
        }
    }

    @Override
    public void sendMessageBefore(SendMessageContext context) {
        tell("before send", context.getMessage().getKeys(), null);
    }

    @Override
    public void sendMessageAfter(SendMessageContext context) {
        String end = context.getSendResult() == null
            ? context.getException().getClass().getSimpleName() : context.getSendResult().getSendStatus().name();
        tell("after send", context.getMessage().getKeys(), end);
    }

    @Override
    public void consumeMessageBefore(ConsumeMessageContext context) {
        context.getMsgList().forEach(message -> tell("before consume", message.getKeys(), null));
    }

    @Override
    public void consumeMessageAfter(ConsumeMessageContext context) {
        context.getMsgList().forEach(message -> tell("after consume", message.getKeys(), context.getStatus()));
    }

    private synchronized void tell(String when, String key, String end) {
        JSONObject fact = new JSONObject(true);
        fact.put("when", when);
        fact.put("key", key);
        fact.put("end", end);
        told.add(fact);
    }

    synchronized JSONArray told() {
        return new JSONArray(new ArrayList<>(told));
    }
}
