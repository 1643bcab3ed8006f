/*
 * CuratorLock HOSTS PATH KIND GO [try] - takes a lock as Curator's recipes do, for interplay with them.
 *
 * KIND is mutex, read, write or semaphore (one lease). Prints "held NODE" when it has it (nothing behind it for a
 * semaphore), keeps it until the file GO exists, prints "released". With "try" it does not wait: "refused", 75.
 * Compiled and run by tests/support/zookeeper.bash (curator_lock).
 */
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.concurrent.TimeUnit;

import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessLock;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.framework.recipes.locks.InterProcessReadWriteLock;
import org.apache.curator.framework.recipes.locks.InterProcessSemaphoreMutex;
import org.apache.curator.retry.RetryOneTime;

public class CuratorLock {
    /* Only a subclass may ask for the name of the node. */
    static class Named extends InterProcessMutex {
        Named(CuratorFramework client, String path) {
            super(client, path);
        }

        String node() {
            return getLockPath();
        }
    }

    public static void main(String[] args) throws Exception {
        CuratorFramework client = CuratorFrameworkFactory.newClient(args[0], 4000, 4000, new RetryOneTime(100));
        client.start();
        InterProcessLock lock;
        switch (args[2]) {
        case "mutex":
            lock = new Named(client, args[1]);
            break;
        case "read":
            lock = new InterProcessReadWriteLock(client, args[1]).readLock();
            break;
        case "write":
            lock = new InterProcessReadWriteLock(client, args[1]).writeLock();
            break;
        case "semaphore":
            lock = new InterProcessSemaphoreMutex(client, args[1]);
            break;
        default:
            throw new IllegalArgumentException(args[2]);
        }
        if (args.length > 4) {
            if (!lock.acquire(0, TimeUnit.MILLISECONDS)) {
                System.out.println("refused");
                client.close();
                System.exit(75);
            }
        } else {
            lock.acquire();
        }
        System.out.println(lock instanceof Named ? "held " + ((Named) lock).node() : "held");
        while (!Files.exists(Path.of(args[3])))
            Thread.sleep(20);
        lock.release();
        System.out.println("released");
        client.close();
        System.exit(0);
    }
}
