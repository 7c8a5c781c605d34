import com.alibaba.fastjson.JSON;
import com.alibaba.fastjson.JSONObject;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.TreeMap;

/**
 * One JVM that runs the steps of many tests: it reads a JSON object a line from standard input, does
 * what its "step" names with RocketMQ's own client or tools, and prints a JSON object with facts.
 * It judges nothing; a step that throws answers {"error": ...}. It ends with its input.
 */
public final class Driver {
    interface Step {
        Object run(JSONObject command) throws Exception;
    }

    public static void main(String[] arguments) throws Exception {
        PrintStream answers = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        System.setOut(System.err);
        Map<String, Step> steps = new TreeMap<>();
        Producers producers = new Producers();
        Consumers consumers = new Consumers();
        LitePulls lites = new LitePulls();
        Tools tools = new Tools();
        Transactions transactions = new Transactions();
        steps.put("send", producers::send);
        steps.put("consume", consumers::start);
        steps.put("received", consumers::received);
        steps.put("sendHooks", producers::sendHooks);
        steps.put("recall", producers::recall);
        steps.put("stop", consumers::stop);
        steps.put("assigned", consumers::assigned);
        steps.put("consumeHooks", consumers::consumeHooks);
        steps.put("lite", lites::start);
        steps.put("litePoll", lites::poll);
        steps.put("liteSeek", lites::seek);
        steps.put("litePause", lites::pause);
        steps.put("liteCommit", lites::commit);
        steps.put("liteStop", lites::stop);
        steps.put("pullAll", consumers::pullAll);
        steps.put("pullAt", consumers::pullAt);
        steps.put("mqadmin", tools::mqadmin);
        steps.put("command", tools::command);
        steps.put("query", tools::query);
        steps.put("offsets", tools::offsets);
        steps.put("view", tools::view);
        steps.put("verdicts", new Filters()::verdicts);
        steps.put("allocate", new Allocations()::allocate);
        steps.put("filterTable", new FilterTables()::write);
        steps.put("filterTableRead", new FilterTables()::read);
        steps.put("positions", Operations::positions);
        steps.put("tracedSend", Operations::send);
        steps.put("tracedConsume", Operations::consume);
        steps.put("transactions", transactions::send);
        steps.put("checks", transactions::checks);
        steps.put("request", transactions::request);
        steps.put("reply", transactions::reply);
        Steady steady = new Steady();
        steps.put("steady", steady::start);
        steps.put("steadyCount", steady::count);
        steps.put("steadyStop", steady::stop);
        BufferedReader input =
            new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line; (line = input.readLine()) != null; ) {
            answers.println(JSON.toJSONString(answer(steps, JSON.parseObject(line))));
        }
        producers.close();
        consumers.close();
        lites.close();
        transactions.close();
        tools.close();
        Operations.close();
        System.exit(0);
    }

    private static Object answer(Map<String, Step> steps, JSONObject command) {
        JSONObject answer = new JSONObject(true);
        try {
            answer.put("facts", steps.get(command.getString("step")).run(command));
        } catch (Throwable failure) {
            failure.printStackTrace();
            StringBuilder causes = new StringBuilder();
            for (Throwable cause = failure; cause != null; cause = cause.getCause()) {
                causes.append(cause).append("; ");
            }
            answer.put("error", causes.toString());
        }
        return answer;
    }
}
