import com.alibaba.fastjson.JSONArray;
import com.alibaba.fastjson.JSONObject;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import org.apache.rocketmq.client.consumer.AllocateMessageQueueStrategy;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMachineRoomNearby;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragelyByCircle;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueByMachineRoom;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueConsistentHash;
import org.apache.rocketmq.common.message.MessageQueue;

/** What RocketMQ's own strategies give to members, over inputs of the test's choice. */
final class Allocations {
    /**
     * allocate: cases[], each with strategy, topic, queues[] (pairs of broker and id) and members[],
     * both sorted as a client sorts them; gives the shares of each case, a list a member, as places
     * in its queues. For rooms, a broker's room is its first letter, and a member's too.
     */
    Object allocate(JSONObject command) {
        JSONArray answer = new JSONArray();
        JSONArray cases = command.getJSONArray("cases");
        for (int number = 0; number < cases.size(); number++) {
            answer.add(shares(cases.getJSONObject(number)));
        }
        return answer;
    }

    private static JSONArray shares(JSONObject one) {
        List<MessageQueue> queues = new ArrayList<>();
        for (Object pair : one.getJSONArray("queues")) {
            JSONArray parts = (JSONArray) pair;
            queues.add(new MessageQueue(one.getString("topic"), parts.getString(0), parts.getIntValue(1)));
        }
        List<String> members = one.getJSONArray("members").toJavaList(String.class);
        AllocateMessageQueueStrategy strategy = strategy(one.getString("strategy"));
        JSONArray shares = new JSONArray();
        for (String member : members) {
            List<Integer> places = new ArrayList<>();
            for (MessageQueue queue : strategy.allocate("group", member, queues, members)) {
                places.add(queues.indexOf(queue));
            }
            places.sort(null);
            shares.add(places);
        }
        return shares;
    }

    private static AllocateMessageQueueStrategy strategy(String name) {
        switch (name) {
            case "AVG":
                return new AllocateMessageQueueAveragely();
            case "AVG_BY_CIRCLE":
                return new AllocateMessageQueueAveragelyByCircle();
            case "CONSISTENT_HASH":
                return new AllocateMessageQueueConsistentHash();
            case "CONSISTENT_HASH_3":
                return new AllocateMessageQueueConsistentHash(3);
            case "MACHINE_ROOM":
                AllocateMessageQueueByMachineRoom rooms = new AllocateMessageQueueByMachineRoom();
                rooms.setConsumeridcs(new HashSet<>(List.of("r", "s")));
                return rooms;
            case "MACHINE_ROOM_NEARBY":
                return new AllocateMachineRoomNearby(new AllocateMessageQueueAveragely(), new FirstLetters());
            default:
                throw new IllegalArgumentException(name);
        }
    }

    private static final class FirstLetters implements AllocateMachineRoomNearby.MachineRoomResolver {
        @Override
        public String brokerDeployIn(MessageQueue queue) {
            return queue.getBrokerName().substring(0, 1);
        }

        @Override
        public String consumerDeployIn(String clientId) {
            return clientId.substring(0, 1);
        }
    }
}
