import com.alibaba.fastjson.JSONObject;
import java.util.ArrayList;
import java.util.List;
import org.apache.rocketmq.client.consumer.AllocateMessageQueueStrategy;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragelyByCircle;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueByConfig;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueConsistentHash;
import org.apache.rocketmq.common.message.MessageQueue;

/** RocketMQ's ways to share queues, by the names that members of a group must agree on. */
final class Strategies {
    private Strategies() {
    }

    /** strategy: AVG, AVG_BY_CIRCLE, CONSISTENT_HASH, or CONFIG with topic, broker and queues[]. */
    static AllocateMessageQueueStrategy of(JSONObject command) {
        switch (command.getString("strategy")) {
            case "AVG":
                return new AllocateMessageQueueAveragely();
            case "AVG_BY_CIRCLE":
                return new AllocateMessageQueueAveragelyByCircle();
            case "CONSISTENT_HASH":
                return new AllocateMessageQueueConsistentHash();
            case "CONFIG":
                List<MessageQueue> queues = new ArrayList<>();
                for (Object queue : command.getJSONArray("queues")) {
                    queues.add(new MessageQueue(command.getString("topic"), command.getString("broker"), (Integer) queue));
                }
                AllocateMessageQueueByConfig chosen = new AllocateMessageQueueByConfig();
                chosen.setMessageQueueList(queues);
                return chosen;
            default:
                throw new IllegalArgumentException(command.getString("strategy"));
        }
    }
}
