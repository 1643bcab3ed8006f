// excludes.js DLOCK LOCK NAME PORT... - node-redlock and dlock exclude and wake each other.
'use strict';
const { spawn, spawnSync } = require('child_process');
const Redis = require('ioredis');
const Redlock = require('redlock');
const [dlock, lock, name, ...ports] = process.argv.slice(2);
const nodes = ports.map((p) => new Redis(p, '127.0.0.1'));
const once = new Redlock(nodes, { retryCount: 0 });
const patient = new Redlock(nodes, { retryCount: 100, retryDelay: 50, retryJitter: 10 });

const assert = (ok, what) => {
    if (!ok) throw new Error(what);
};
const exit = (child) => new Promise((done) => child.on('exit', (code) => done(code)));
const line = (child) => new Promise((done) => child.stdout.once('data', done));
const keys = async () => {
    const there = await Promise.all(nodes.map((n) => n.exists(name)));
    return there.reduce((a, b) => a + b);
};
const watched = async () => {
    const info = await Promise.all(nodes.map((n) => n.info('clients')));
    return info.filter((i) => /tracking_clients:[1-9]/.test(i)).length > nodes.length / 2;
};
const wait = async (what, cond) => {
    for (let i = 0; !(await cond()); i++) {
        assert(i < 250, `not within 5 s: ${what}`);
        await new Promise((go) => setTimeout(go, 20));
    }
};

(async () => {
    // Theirs keeps ours out, and its release wakes ours.
    const theirs = await once.lock(name, 60000);
    const refused = spawnSync(dlock, ['-q', '-n', lock, 'true']).status;
    assert(refused === 75, `dlock -n under a lock of node-redlock: ${refused}`);
    assert((await keys()) === nodes.length, 'dlock has changed the lock of node-redlock');
    const waiter = spawn(dlock, ['--ttl', '60', lock, 'true'], { stdio: 'inherit' });
    const waited = exit(waiter);
    await wait('dlock watches', watched);
    const begin = Date.now();
    await theirs.unlock();
    const code = await waited;
    assert(code === 0, `the waiting dlock: ${code}`);
    assert(Date.now() - begin < 1000, `it was woken after ${Date.now() - begin} ms`);
    // Extended by its owner, it still keeps ours out.
    const longer = await (await once.lock(name, 2000)).extend(60000);
    const busy = spawnSync(dlock, ['-q', '-n', lock, 'true']).status === 75;
    assert(busy, 'dlock -n under an extended lock');
    await longer.unlock();

    // Ours keeps theirs out, and our release lets theirs in.
    const holder = spawn(dlock, [lock, 'sh', '-c', 'echo; read x'],
        { stdio: ['pipe', 'pipe', 'inherit'] });
    await line(holder);
    /* A majority was enough for the command to start. */
    await wait('all have voted', async () => (await keys()) === nodes.length);
    const failed = await once.lock(name, 1000)
        .then(() => false, (e) => e instanceof Redlock.LockError);
    assert(failed, 'node-redlock got the lock that dlock holds');
    assert((await keys()) === nodes.length, 'node-redlock has changed the lock of dlock');
    const later = patient.lock(name, 60000);
    const ended = exit(holder);
    holder.stdin.end('\n');
    assert((await ended) === 0, 'the holder');
    await (await later).unlock();
    assert((await keys()) === 0, 'something is left');
})()
    .catch((e) => {
        console.log(e);
        process.exitCode = 1;
    })
    .finally(() => nodes.forEach((n) => n.disconnect()));
