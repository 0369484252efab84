// Finds the sockets of this process that others can reach, as the kernel tells, and the libraries that it has loaded.
import { readdirSync, readFileSync, readlinkSync } from 'node:fs';

const TCP_LISTEN = '0A';
const UNIX_DATAGRAM = '0002';
const UNIX_LISTENS = 0x1_0000;

export interface ReachableSocket {
  readonly kind: 'tcp' | 'udp' | 'unix';
  /** "127.0.0.1", "::1", or the path of a Unix socket, which begins with @ if it is abstract. */
  readonly address: string;
}

/** TCP sockets that listen, UDP sockets that have a port, Unix sockets that have a name and take connections or datagrams. */
export function reachableSockets(): ReachableSocket[] {
  const own = ownInodes();
  const isOwn = (inode: string | undefined): boolean => own.has(inode ?? '');
  const found: ReachableSocket[] = [];
  for (const table of ['tcp', 'tcp6']) {
    for (const [, local = '', , state, , , , , , inode] of rows(table)) {
      if (isOwn(inode) && state === TCP_LISTEN) found.push({ kind: 'tcp', address: addressOf(local) });
    }
  }
  for (const table of ['udp', 'udp6']) {
    for (const [, local = '', , , , , , , , inode] of rows(table)) {
      if (isOwn(inode)) found.push({ kind: 'udp', address: addressOf(local) });
    }
  }
  for (const [, , , flags = '0', type, , inode, path] of rows('unix')) {
    const isReachable = type === UNIX_DATAGRAM || (Number.parseInt(flags, 16) & UNIX_LISTENS) !== 0;
    if (isOwn(inode) && isReachable && path !== undefined) found.push({ kind: 'unix', address: path });
  }
  return found;
}

/** File names of the shared libraries that are mapped. */
export function loadedLibraries(): string[] {
  const paths = readFileSync('/proc/self/maps', 'utf8').match(/\S+\.so[.\d]*$/gm) ?? [];
  return [...new Set(paths.map((path) => path.slice(path.lastIndexOf('/') + 1)))];
}

function ownInodes(): ReadonlySet<string> {
  const inodes = new Set<string>();
  for (const fd of readdirSync('/proc/self/fd')) {
    let target = '';
    try {
      target = readlinkSync(`/proc/self/fd/${fd}`);
    } catch {
      // That of the folder itself.
    }
    const inode = /^socket:\[(\d+)\]$/.exec(target)?.[1];
    if (inode !== undefined) inodes.add(inode);
  }
  return inodes;
}

function rows(table: string): string[][] {
  let text = '';
  try {
    text = readFileSync(`/proc/self/net/${table}`, 'utf8');
  } catch {
    // A kernel without IPv6 has no such table.
  }
  const lines = text.split('\n').slice(1);
  return lines.filter((line) => line !== '').map((line) => line.trim().split(/\s+/));
}

/** "0100007F:1F90" is 127.0.0.1: the kernel prints words of the network's order as the machine reads them. */
function addressOf(local: string): string {
  const hex = local.slice(0, local.indexOf(':'));
  const bytes = Buffer.from(hex, 'hex');
  for (let word = 0; word < bytes.length; word += 4) bytes.subarray(word, word + 4).reverse();
  if (bytes.length === 4) return bytes.join('.');
  const groups = Array.from({ length: 8 }, (_, at) => bytes.readUInt16BE(at * 2).toString(16));
  return new URL(`http://[${groups.join(':')}]/`).hostname.slice(1, -1);
}
