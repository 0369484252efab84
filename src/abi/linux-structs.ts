// Structures of the Linux kernel that are filled in and read as numbers, on x86-64 and arm64 (little-endian, 64 bits).

/** struct mmsghdr, in words of 32 bits: name, name length, iovecs, their count, control, its length, flags, msg_len. */
export const messageHeaderWord = {
  iovecs: 4,
  iovecCount: 6,
  control: 8,
  controlLength: 10,
  flags: 12,
  length: 14,
} as const;
export const MESSAGE_HEADER_WORDS = 16;

/** struct iovec, in words of 32 bits: address, bytes. */
export const iovecWord = { address: 0, bytes: 2 } as const;
export const IOVEC_WORDS = 4;

/** struct epoll_event, in words of 32 bits: events, then the caller's number. It is packed on x86-64 alone. */
export const epollEventWord: { readonly events: number; readonly number: number } = {
  events: 0,
  number: process.arch === 'x64' ? 1 : 2,
};
export const EPOLL_EVENT_WORDS: number = process.arch === 'x64' ? 3 : 4;

/** struct tcp_info: where the numbers stand that are of use, and how many of its bytes are asked for. */
export const tcpInfoOffset = { probes: 3, unacked: 24, lastAckReceived: 56 } as const;
export const TCP_INFO_BYTES = 60;

/** struct flock. */
export const fileLockOffset = { type: 0, start: 8, length: 16 } as const;
export const FILE_LOCK_BYTES = 32;

/** struct sockaddr_in and sockaddr_in6: the family is in the machine's order, the port and IPv6 groups in the network's. */
export const socketAddressOffset = { family: 0, port: 2, ipv4: 4, ipv6: 8 } as const;
export const SOCKADDR_IN_BYTES = 16;
export const SOCKADDR_IN6_BYTES = 28;

/** struct rusage: two times of 16 bytes and 14 numbers of 8, the last of which counts involuntary context switches. */
export const RUSAGE_WORDS = 36;
export const RUSAGE_INVOLUNTARY_WORD = 34;
