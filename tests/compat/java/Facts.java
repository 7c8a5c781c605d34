import com.alibaba.fastjson.JSONArray;
import com.alibaba.fastjson.JSONObject;
import java.nio.charset.StandardCharsets;
import java.util.List;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.MessageExt;

/** What is told of messages and answers, in one form for all steps. */
final class Facts {
    private Facts() {
    }

    static JSONObject of(MessageExt message) {
        JSONObject fact = new JSONObject(true);
        fact.put("topic", message.getTopic());
        fact.put("queueId", message.getQueueId());
        fact.put("queueOffset", message.getQueueOffset());
        fact.put("commitLogOffset", message.getCommitLogOffset());
        fact.put("storeSize", message.getStoreSize());
        fact.put("msgId", message.getMsgId());
        fact.put("tags", message.getTags());
        fact.put("keys", message.getKeys());
        fact.put("flag", message.getFlag());
        fact.put("sysFlag", message.getSysFlag());
        fact.put("reconsumeTimes", message.getReconsumeTimes());
        fact.put("bornHost", message.getBornHostString());
        fact.put("storeTimestamp", message.getStoreTimestamp());
        byte[] body = message.getBody();
        fact.put("bodySize", body.length);
        fact.put("body", new String(body, 0, Math.min(body.length, 64), StandardCharsets.UTF_8));
        fact.put("properties", new JSONObject(new java.util.TreeMap<String, Object>(message.getProperties())));
        return fact;
    }

    static JSONArray of(List<MessageExt> messages) {
        JSONArray facts = new JSONArray();
        messages.forEach(message -> facts.add(of(message)));
        return facts;
    }

    static JSONObject of(SendResult result) {
        JSONObject fact = new JSONObject(true);
        fact.put("status", result.getSendStatus().name());
        fact.put("msgId", result.getMsgId());
        fact.put("offsetMsgId", result.getOffsetMsgId());
        fact.put("queueId", result.getMessageQueue().getQueueId());
        fact.put("brokerName", result.getMessageQueue().getBrokerName());
        fact.put("queueOffset", result.getQueueOffset());
        fact.put("regionId", result.getRegionId());
        try {
            fact.put("recallHandle", result.getClass().getMethod("getRecallHandle").invoke(result));
        } catch (ReflectiveOperationException unknown) {
            fact.put("recallHandle", null); // RocketMQ 4 has none
        }
        return fact;
    }
}
