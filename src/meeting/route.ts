// Which address of this host packets to another host come from: the one at which that host reaches this one.
import { createSocket } from 'node:dgram';
import { lookup } from 'node:dns/promises';
import { WeftlineError } from '../core/errors.ts';
import { quote } from '../core/quote.ts';
import { checkHost } from './check-address.ts';

/** Any port: connecting a UDP socket asks the kernel for the route and sends nothing. */
const NO_PORT = 9;

/** A numeric address of this host. Fails with WL_INVALID_ARGUMENT for a name that no host has, or without a route. */
export async function addressTowards(host: string): Promise<string> {
  checkHost(host);
  try {
    const { address, family } = await lookup(host);
    const socket = createSocket(family === 6 ? 'udp6' : 'udp4');
    try {
      await new Promise<void>((resolve, reject) => {
        socket.once('error', reject);
        socket.connect(NO_PORT, address, resolve);
      });
      return socket.address().address;
    } finally {
      socket.close();
    }
  } catch (cause) {
    const reason = cause instanceof Error ? cause.message : String(cause);
    throw new WeftlineError('WL_INVALID_ARGUMENT', `No route from this host to ${quote(host)}: ${reason}`, {
      details: { host },
      cause,
    });
  }
}
