// A process that begins a step on memory of the agent that it is told of, and stays within it.
import { localConnectionInfo } from '#lib/agent/backends/local/local-region.js';
import { Block } from '#lib/abi/layout.js';
import type { BackendPeer } from '#lib/agent/backend.js';
import { PeerMailbox } from '#lib/agent/backends/local/peer-mailbox.js';

process.on('message', ({ name, incarnation, connectionInfo }: BackendPeer) => {
  const info = Block.over(localConnectionInfo, connectionInfo);
  const [pid, fd, device, inode, bytes] = (['pid', 'fd', 'device', 'inode', 'bytes'] as const).map((field) =>
    info.get(field),
  ) as [number, number, number, number, number];
  const place = { pid, fd, device, inode, bytes };
  PeerMailbox.open({ peer: name, incarnation, place, sender: 'holder' }).steps.begin();
  process.send?.('within');
});
