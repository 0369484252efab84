// An agent whose process the system forbids copies between processes, as containers do, and a peer: what is chosen then.
import { Agent, type BackendVerdict, DescriptorList } from 'weftline/agent';
import { lazyFunction, linuxLibrary, NativeBlock } from '#lib/native/library.js';

export interface ForbiddenFindings {
  readonly plain: string;
  readonly verdicts: readonly BackendVerdict[];
  readonly allocated: string;
  readonly areWritten: boolean;
  readonly forced: string;
}

const PR_SET_SECCOMP = 22;
const PR_SET_NO_NEW_PRIVS = 38;
const SECCOMP_MODE_FILTER = 2;
const EPERM = 1;
const calls = process.arch === 'arm64' ? ([270, 271] as const) : ([310, 311] as const);

/** For this thread and those that it starts, process_vm_readv and process_vm_writev are not permitted any more. */
function forbidCopies(): void {
  const [load, jumpIfEqual, answer] = [0x20, 0x15, 0x06];
  const [allow, fail] = [0x7fff_0000, 0x0005_0000 + EPERM];
  const program = [
    { code: load, jump: 0, value: 0 },
    { code: jumpIfEqual, jump: 2, value: calls[0] },
    { code: jumpIfEqual, jump: 1, value: calls[1] },
    { code: answer, jump: 0, value: allow },
    { code: answer, jump: 0, value: fail },
  ];
  const head = program.length * 8;
  const block = new NativeBlock(head + 16);
  const view = new DataView(block.bytes.buffer, block.bytes.byteOffset);
  for (const [index, { code, jump, value }] of program.entries()) {
    view.setUint16(index * 8, code, true);
    view.setUint8(index * 8 + 2, jump);
    view.setUint32(index * 8 + 4, value, true);
  }
  view.setUint16(head, program.length, true);
  view.setBigUint64(head + 8, BigInt(block.address), true);
  const control = lazyFunction(linuxLibrary, 'int prctl(int, uint64_t, uint64_t, uint64_t, uint64_t)')();
  const isSet =
    control(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) === 0 &&
    control(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, block.address + head, 0, 0) === 0;
  if (!isSet) throw new Error('the system takes no filter of system calls');
}

forbidCopies();
const bytes = 65_536;
const a = await Agent.create('a', { backends: ['local', 'multipath'] });
const b = await Agent.create('b', { backends: ['local', 'multipath'] });
const out = await a.register(new Uint8Array(new SharedArrayBuffer(bytes)).fill(5));
const plain = await b.register(new Uint8Array(new SharedArrayBuffer(bytes)), { name: 'plain' });
const allocated = await b.allocate(bytes, { name: 'allocated' });
await a.loadRemoteMetadata(b.localMetadata());
const lists = (name: string): { local: DescriptorList; remote: DescriptorList } => {
  const [remote] = a.remoteMemory('b').filter((memory) => memory.name === name);
  if (remote === undefined) throw new Error(name);
  return { local: DescriptorList.of(out), remote: DescriptorList.of(remote) };
};
const chosen: string[] = [];
for (const name of ['plain', 'allocated']) {
  await using transfer = await a.prepare({ operation: 'write', peer: 'b', ...lists(name) });
  transfer.post();
  await transfer.wait();
  chosen.push(transfer.backend);
}
const forced = a.prepare({ operation: 'write', peer: 'b', backend: 'local', ...lists('plain') });
const findings: ForbiddenFindings = {
  plain: chosen[0] ?? '',
  allocated: chosen[1] ?? '',
  verdicts: a.explain('b', lists('plain')),
  areWritten: [plain, allocated].every((memory) => memory.bytes.every((byte) => byte === 5)),
  forced: await forced.then(
    () => 'it worked',
    (error: unknown) => (error as Error).message,
  ),
};
console.log(JSON.stringify(findings));
await a.close();
await b.close();
