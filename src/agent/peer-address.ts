// Whether the address that a peer has published leads to it.
import { isLoopback } from '../meeting/loopback.ts';
import { readToken } from '../settings/token.ts';

/** Where a peer listens, and `networkIdentity()` there. */
interface PublishedAddress {
  readonly host: string;
  readonly network: string;
}

interface AddressReader {
  /** `networkIdentity()` here. */
  readonly network: string;
  /** The option of the agent. */
  readonly token: string;
}

/** Undefined if it may be called there. */
export function whyNotAddress({ host, network }: PublishedAddress, reader: AddressReader): string | undefined {
  if (!isLoopback(host)) {
    if (readToken(reader.token) !== '') return undefined;
    return `the peer is at ${host}, on another host, for which both need a token (WEFTLINE_TOKEN, or the option token)`;
  }
  if (network === reader.network) return undefined;
  return `the peer is on another machine but published ${host}, which only its own machine reaches: name the master of the job (--master, WEFTLINE_MASTER_ADDR, MASTER_ADDR) by an address at which others reach its host, or create the peer's agent with the option host`;
}
