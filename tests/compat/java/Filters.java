import com.alibaba.fastjson.JSONArray;
import com.alibaba.fastjson.JSONObject;
import java.util.Map;
import java.util.TreeMap;
import org.apache.rocketmq.broker.filter.MessageEvaluationContext;
import org.apache.rocketmq.filter.FilterFactory;
import org.apache.rocketmq.filter.expression.Expression;
import org.apache.rocketmq.filter.expression.MQFilterException;

/** What RocketMQ's own SQL92 filters say. */
final class Filters {
    /** For each of `expressions` a verdict on each of `messages` (maps of properties), or null when
     *  the expression is refused. A verdict is true only where the broker would send the message. */
    Object verdicts(JSONObject command) {
        JSONArray answer = new JSONArray();
        JSONArray messages = command.getJSONArray("messages");
        for (Object text : command.getJSONArray("expressions")) {
            answer.add(verdictsOf((String) text, messages));
        }
        return answer;
    }

    private static JSONArray verdictsOf(String text, JSONArray messages) {
        Expression expression;
        try {
            expression = FilterFactory.INSTANCE.get("SQL92").compile(text);
        } catch (MQFilterException refused) {
            return null;
        }
        JSONArray verdicts = new JSONArray();
        for (int number = 0; number < messages.size(); number++) {
            Map<String, String> properties = new TreeMap<>();
            messages.getJSONObject(number).forEach((name, value) -> properties.put(name, (String) value));
            verdicts.add(accepts(expression, properties));
        }
        return verdicts;
    }

    private static boolean accepts(Expression expression, Map<String, String> properties) {
        try {
            return Boolean.TRUE.equals(expression.evaluate(new MessageEvaluationContext(properties)));
        } catch (Throwable failure) {
            return false;
        }
    }
}
