// Whether a guest with RDMA devices can be had on this machine.
import { spawnSync } from 'node:child_process';
import { fileURLToPath } from 'node:url';

const rig = fileURLToPath(new URL('../../../../scripts/soft-roce.mjs', import.meta.url));

/** Why there can be none; undefined if there can. Tests download nothing: somebody must have prepared the guest. */
export function whyNoGuest(): string | undefined {
  const { status, stderr } = spawnSync(process.execPath, [rig, '--is-prepared'], {
    encoding: 'utf8',
    timeout: 240_000,
  });
  return status === 0 ? undefined : `no guest with RDMA devices: ${stderr.trim().split('\n').at(-1)}`;
}
