// Another process with an agent, which does what the test says: one message per command, one per answer.
import { writeFileSync } from 'node:fs';
import {
  Agent,
  type AgentOptions,
  DescriptorList,
  etcdMetadataStore,
  publishMetadata,
  type Registration,
} from 'weftline/agent';
import type { EtcdOptions } from '#lib/agent/exchange/etcd-store.js';
import { encodeError } from '#lib/core/errors.js';

export type PeerCommand =
  | { readonly do: 'create'; readonly name: string; readonly options: AgentOptions }
  | { readonly do: 'allocate' | 'register'; readonly name: string; readonly bytes: number }
  | { readonly do: 'deregister'; readonly name: string }
  | { readonly do: 'metadata' }
  | { readonly do: 'load'; readonly blob: Uint8Array }
  | { readonly do: 'fill'; readonly name: string; readonly value: number }
  | { readonly do: 'bytes'; readonly name: string; readonly offset: number; readonly count: number }
  | { readonly do: 'next'; readonly blocking: boolean; readonly timeoutMs: number }
  /** Blocks for a notification, then says in a file what the first and the last byte of the region were. */
  | { readonly do: 'mark'; readonly name: string; readonly path: string }
  | { readonly do: 'notify'; readonly peer: string; readonly message: Uint8Array }
  | { readonly do: 'write'; readonly peer: string; readonly name: string; readonly message: Uint8Array }
  | { readonly do: 'awaitCell'; readonly name: string; readonly value: number }
  | { readonly do: 'publish'; readonly etcd: EtcdOptions }
  | { readonly do: 'close' };

const regions = new Map<string, Registration>();
let agent: Agent;

function region(name: string): Registration {
  return regions.get(name) as Registration;
}

async function carryOut(command: PeerCommand): Promise<unknown> {
  switch (command.do) {
    case 'create':
      agent = await Agent.create(command.name, command.options);
      return agent.incarnation;
    case 'allocate':
      regions.set(command.name, await agent.allocate(command.bytes, { name: command.name }));
      return undefined;
    case 'register':
      regions.set(command.name, await agent.register(new Uint8Array(command.bytes), { name: command.name }));
      return undefined;
    case 'deregister':
      return region(command.name).close();
    case 'metadata':
      return agent.localMetadata();
    case 'load':
      return agent.loadRemoteMetadata(command.blob);
    case 'fill':
      region(command.name).bytes.fill(command.value);
      return undefined;
    case 'bytes':
      return region(command.name).bytes.slice(command.offset, command.offset + command.count);
    case 'next': {
      const { blocking, timeoutMs } = command;
      return blocking ? agent.nextNotificationBlocking({ timeoutMs }) : agent.nextNotification({ timeoutMs });
    }
    case 'mark': {
      const { message } = agent.nextNotificationBlocking();
      const { bytes } = region(command.name);
      writeFileSync(command.path, `${Buffer.from(message).toString()} ${bytes[0]} ${bytes.at(-1)}`);
      return undefined;
    }
    case 'notify':
      return agent.notify(command.peer, command.message);
    case 'write': {
      const [remote] = agent.remoteMemory(command.peer);
      if (remote === undefined) throw new Error('no remote memory');
      const local = DescriptorList.of(region(command.name), 0, remote.length);
      const { peer } = command;
      await using transfer = await agent.prepare({
        operation: 'write',
        peer,
        local,
        remote: DescriptorList.of(remote),
      });
      transfer.post(command.message);
      await transfer.wait();
      return undefined;
    }
    case 'awaitCell': {
      const { bytes } = region(command.name);
      const cell = new BigUint64Array(bytes.buffer, bytes.byteOffset, 1);
      const end = performance.now() + 60_000;
      while (Atomics.load(cell, 0) < BigInt(command.value)) {
        if (performance.now() > end) throw new Error(`the cell is ${Atomics.load(cell, 0)}`);
        agent.poll();
        await new Promise((resolve) => setImmediate(resolve));
      }
      return Number(Atomics.load(cell, 0));
    }
    case 'publish':
      return publishMetadata(agent, etcdMetadataStore(command.etcd));
    case 'close':
      return agent.close();
    default:
      return command satisfies never;
  }
}

process.on('message', (command: PeerCommand) => {
  carryOut(command).then(
    (result) => process.send?.({ result }),
    (error: unknown) => process.send?.({ error: encodeError(error) }),
  );
});
