// An etcd of a test's own, and whether there can be one.
import { spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { etcdMetadataStore } from 'weftline/agent';
import { freePort } from '../../support/free-port.ts';
import { until } from '../../support/until.ts';
import { skipWithout } from './requirements.ts';

const host = '127.0.0.1';
const { error: noEtcd } = spawnSync('etcd', ['--version']);

/** For a test's option `skip`. */
export const withoutEtcd: string | false = skipWithout(
  'etcd',
  noEtcd === undefined ? undefined : 'no etcd on this machine (Debian: etcd-server)',
);

export interface RunningEtcd extends AsyncDisposable {
  readonly endpoint: string;
}

/** Resolves when it answers. */
export async function runEtcd(): Promise<RunningEtcd> {
  const folder = mkdtempSync(join(tmpdir(), 'weftline-etcd-'));
  const [clients, peers] = [await freePort(host), await freePort(host)];
  const endpoint = `http://${host}:${clients}`;
  const settings = {
    'data-dir': folder,
    'listen-client-urls': endpoint,
    'advertise-client-urls': endpoint,
    'listen-peer-urls': `http://${host}:${peers}`,
    'initial-advertise-peer-urls': `http://${host}:${peers}`,
    'initial-cluster': `default=http://${host}:${peers}`,
    'log-level': 'error',
  };
  const flags = Object.entries(settings).flatMap(([name, value]) => [`--${name}`, value]);
  const env = { ...process.env, ETCD_UNSUPPORTED_ARCH: process.arch };
  const child = spawn('etcd', flags, { stdio: 'ignore', env });
  const stop = async (): Promise<void> => {
    child.kill('SIGKILL');
    await once(child, 'exit');
    rmSync(folder, { recursive: true });
  };
  const store = etcdMetadataStore({ endpoint });
  const answers = (): Promise<boolean> =>
    store.put('probe', Buffer.from('x')).then(
      () => true,
      () => false,
    );
  try {
    // It needs a moment to elect itself.
    await until(answers, 'an answer of etcd');
  } catch (error) {
    await stop();
    throw error;
  }
  return { endpoint, [Symbol.asyncDispose]: stop };
}
