// Two backends over RDMA without agents, in one process of the guest, at both ends of the wire.
import assert from 'node:assert/strict';
import type { Settings } from 'weftline';
import type { BackendLink, BackendRegion, BackendRemoteRegion, BackendTransfer } from '#lib/agent/backend.js';
import { loadHostBackend } from '#lib/agent/backends/backend-table.js';
import { hostMemory, openBackend, type OpenBackend } from '../../../local/support/backend-context.ts';
import { planned } from '../../../local/support/planned-transfer.ts';
import { NativeBlock } from '#lib/native/library.js';

export const MEMORY_BYTES = 1 << 20;

export interface TwoBackends extends AsyncDisposable {
  readonly here: OpenBackend;
  readonly there: OpenBackend;
  readonly both: readonly OpenBackend[];
  readonly link: BackendLink;
  readonly out: NativeBlock;
  readonly into: NativeBlock;
  readonly local: BackendRegion;
  readonly offered: BackendRegion;
  readonly remote: BackendRemoteRegion;
}

export async function openTwo(settings: Partial<Settings> = {}, name: 'verbs' | 'ucx' = 'verbs'): Promise<TwoBackends> {
  const createBackend = await loadHostBackend(name);
  const here = await openBackend(createBackend, 'here', { ...settings, rdmaDevices: 'rxe0' });
  const there = await openBackend(createBackend, 'there', { ...settings, rdmaDevices: 'rxe1' });
  const [out, into] = [new NativeBlock(MEMORY_BYTES), new NativeBlock(MEMORY_BYTES)];
  const local = await here.backend.register(hostMemory(out.bytes));
  const offered = await there.backend.register(hostMemory(into.bytes));
  const link = await here.backend.connect(there.peer, { timeoutMs: 120_000 });
  const remote = link.importRegion(offered.info, { kind: 'host', bytes: MEMORY_BYTES });
  const both = [here, there];
  return {
    here,
    there,
    both,
    link,
    out,
    into,
    local,
    offered,
    remote,
    [Symbol.asyncDispose]: async () => {
      for (const { backend } of both) await backend.close();
    },
  };
}

export interface Range {
  readonly localOffset?: number;
  readonly remote?: BackendRemoteRegion;
  readonly remoteOffset?: number;
  readonly bytes: number;
}

export function prepareWrite({ link, local, remote }: TwoBackends, range: Range): Promise<BackendTransfer> {
  const { localOffset = 0, remoteOffset = 0, bytes } = range;
  return link.prepare('write', planned([{ local, localOffset, remote: range.remote ?? remote, remoteOffset, bytes }]));
}

/** Polls both until the transfer has ended. */
export async function settled({ both }: TwoBackends, transfer: BackendTransfer): Promise<BackendTransfer> {
  await pollAll(both, () => transfer.state !== 'pending', 'the transfer does not end');
  return transfer;
}

export async function pollAll(opens: readonly OpenBackend[], ready: () => boolean, why: string): Promise<void> {
  const end = Date.now() + 120_000;
  for (;;) {
    for (const { backend } of opens) backend.poll();
    if (ready()) return;
    assert.ok(Date.now() < end, why);
    await new Promise((resolve) => setTimeout(resolve, 1));
  }
}
