import com.alibaba.fastjson.JSONObject;
import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.remoting.RPCHook;

/** The account with which a step signs its requests. */
final class Accounts {
    private Accounts() {
    }

    /** The hook of the account in accessKey and secretKey; null if the step names none. */
    static RPCHook hook(JSONObject command) {
        String accessKey = command.getString("accessKey");
        if (accessKey == null) {
            return null;
        }
        return new AclClientRPCHook(new SessionCredentials(accessKey, command.getString("secretKey")));
    }
}
