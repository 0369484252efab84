// Every decoder of bytes that come from elsewhere.
import type { Decoder } from './decoder.ts';
import { agentDecoders } from './decoders/agent.ts';
import { commandsDecoder } from './decoders/commands.ts';
import { endpointMessages } from './decoders/endpoint-messages.ts';
import { frameDecoders, storeRequests } from './decoders/frames.ts';
import { greetingDecoders } from './decoders/greetings.ts';
import { packetDecoders } from './decoders/packets.ts';
import { placesDecoder } from './decoders/places.ts';
import { plantedDecoders } from './decoders/planted.ts';
import { ringDecoders } from './decoders/rings.ts';
import { textDecoders } from './decoders/texts.ts';

export const decoders: readonly Decoder[] = [
  ...packetDecoders,
  placesDecoder,
  commandsDecoder,
  ...frameDecoders,
  storeRequests,
  ...greetingDecoders,
  ...agentDecoders,
  endpointMessages,
  ...ringDecoders,
  ...textDecoders,
];

/** Also of those that have faults, by which the fuzzer itself is tested. */
export function decoderOf(name: string): Decoder {
  const found = [...decoders, ...plantedDecoders].find((decoder) => decoder.name === name);
  if (found === undefined) throw new Error(`No decoder is called ${name}`);
  return found;
}
