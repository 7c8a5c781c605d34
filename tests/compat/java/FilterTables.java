import com.alibaba.fastjson.JSONArray;
import com.alibaba.fastjson.JSONObject;
import org.apache.rocketmq.broker.filter.ConsumerFilterData;
import org.apache.rocketmq.broker.filter.ConsumerFilterManager;

/** RocketMQ's own table of consumer filters, as its file has it. */
final class FilterTables {
    /** filterTable: rows[] of topic, group, expression, version: the file that holds these. */
    Object write(JSONObject command) {
        ConsumerFilterManager table = new ConsumerFilterManager();
        for (Object row : command.getJSONArray("rows")) {
            JSONArray parts = (JSONArray) row;
            table.register(parts.getString(0), parts.getString(1), parts.getString(2), "SQL92", parts.getLongValue(3));
        }
        return table.encode(true);
    }

    /** filterTableRead: text, rows[] as above: what the table holds of each after reading the text. */
    Object read(JSONObject command) {
        ConsumerFilterManager table = new ConsumerFilterManager();
        table.decode(command.getString("text"));
        JSONArray facts = new JSONArray();
        for (Object row : command.getJSONArray("rows")) {
            JSONArray parts = (JSONArray) row;
            ConsumerFilterData data = table.get(parts.getString(0), parts.getString(1));
            JSONArray found = new JSONArray();
            if (data != null) {
                found.add(data.getTopic());
                found.add(data.getConsumerGroup());
                found.add(data.getExpression());
                found.add(data.getClientVersion());
                found.add(data.getCompiledExpression() != null);
            }
            facts.add(found);
        }
        return facts;
    }
}
