// A second wire in the guest, between two more devices: rxe2 (10.78.0.2) and rxe3 (10.78.0.3).
import { writeFileSync } from 'node:fs';
import { command } from './command.ts';

const ENDS = [2, 3] as const;

/** Lays the wire, and takes it away when `use` has ended. */
export async function withSecondWire(use: () => Promise<void>): Promise<void> {
  command('ip', 'link', 'add', 'veth2', 'type', 'veth', 'peer', 'name', 'veth3');
  try {
    for (const end of ENDS) {
      const folder = `/proc/sys/net/ipv4/conf/veth${end}`;
      // Both ends have addresses of this host.
      writeFileSync(`${folder}/accept_local`, '1');
      writeFileSync(`${folder}/rp_filter`, '0');
      command('ip', 'link', 'set', `veth${end}`, 'mtu', '4500', 'up');
      command('ip', 'address', 'add', `10.78.0.${end}/24`, 'dev', `veth${end}`);
      command('rdma', 'link', 'add', `rxe${end}`, 'type', 'rxe', 'netdev', `veth${end}`);
    }
    await use();
  } finally {
    // The devices go with it.
    command('ip', 'link', 'delete', 'veth2');
  }
}
