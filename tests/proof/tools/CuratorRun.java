/*
 * CuratorRun HOSTS PATH TIMEOUT_MS COMMAND... - COMMAND under Curator's InterProcessMutex.
 *
 * As its documentation recommends, a ConnectionStateListener watches for SUSPENDED and LOST: it ends
 * the command. Compiled and run by curator.bash.
 */
import java.util.Arrays;

import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.framework.state.ConnectionState;
import org.apache.curator.retry.ExponentialBackoffRetry;

public class CuratorRun {
    private static volatile Process process;

    public static void main(String[] args) throws Exception {
        int timeout = Integer.parseInt(args[2]);
        CuratorFramework client = CuratorFrameworkFactory.newClient(
            args[0], timeout, 15000, new ExponentialBackoffRetry(100, 20));
        client.getConnectionStateListenable().addListener((c, state) -> {
            System.err.println(state);
            if (process != null
                    && (state == ConnectionState.SUSPENDED || state == ConnectionState.LOST))
                process.destroy();
        });
        client.start();
        InterProcessMutex lock = new InterProcessMutex(client, args[1]);
        lock.acquire();
        int code;
        try {
            process = new ProcessBuilder(Arrays.copyOfRange(args, 3, args.length))
                .inheritIO().start();
            code = process.waitFor();
        } finally {
            lock.release();
        }
        client.close();
        System.exit(code);
    }
}
