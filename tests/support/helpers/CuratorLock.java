/*
 * CuratorLock HOSTS PATH KIND GO [try] - takes a lock as Curator's recipes do, for interplay with them.
 * CuratorLock HOSTS PATH each - tries mutex, read and write, one after the other: "mutex=held read=refused ..."
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

    static InterProcessLock lock(CuratorFramework client, String path, String kind) {
        switch (kind) {
        case "mutex":
            return new Named(client, path);
        case "read":
            return new InterProcessReadWriteLock(client, path).readLock();
        case "write":
            return new InterProcessReadWriteLock(client, path).writeLock();
        case "semaphore":
            return new InterProcessSemaphoreMutex(client, path);
        default:
            throw new IllegalArgumentException(kind);
        }
    }

    static void each(CuratorFramework client, String path) throws Exception {
        StringBuilder out = new StringBuilder();
        for (String kind : new String[] {"mutex", "read", "write"}) {
            InterProcessLock lock = lock(client, path, kind);
            boolean held = lock.acquire(0, TimeUnit.MILLISECONDS);
            if (held)
                lock.release();
            out.append(out.length() > 0 ? " " : "").append(kind).append(held ? "=held" : "=refused");
        }
        System.out.println(out);
        client.close();
        System.exit(0);
    }

    public static void main(String[] args) throws Exception {
        CuratorFramework client = CuratorFrameworkFactory.newClient(args[0], 4000, 4000, new RetryOneTime(100));
        client.start();
        if (args[2].equals("each"))
            each(client, args[1]);
        InterProcessLock lock = lock(client, args[1], args[2]);
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
