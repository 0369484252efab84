// Decoders with faults, each of which the fuzzer must find.
import { WeftlineError } from 'weftline';
import { type Decoder, Fault } from '../decoder.ts';

const seeds = (): readonly Uint8Array[] => [new Uint8Array(Buffer.from('valid')), new Uint8Array(64)];
const taken: Uint8Array[] = [];

function planted(name: string, run: Decoder['run']): Decoder {
  return { name: `planted-${name}`, codes: ['WL_PROTOCOL'], seeds, run };
}

function isRare(input: Uint8Array): boolean {
  return (input[3] as number) > 0xf0;
}

export const plantedDecoders: readonly Decoder[] = [
  planted('none', (input) => {
    if (isRare(input)) throw new WeftlineError('WL_PROTOCOL', 'refused');
  }),
  planted('foreign-error', (input) => {
    if (isRare(input)) throw new TypeError('not for this');
  }),
  planted('wrong-code', (input) => {
    if (isRare(input)) throw new WeftlineError('WL_INTERNAL', 'not for this');
  }),
  planted('broken-promise', (input) => {
    if (isRare(input)) throw new Fault('written outside');
  }),
  planted('late-error', (input) => {
    if (isRare(input)) void Promise.reject(new Error('nobody waits'));
  }),
  planted('endless', (input) => {
    while (isRare(input)) input[4] = (input[4] as number) + 1;
  }),
  planted('greedy-bytes', (input) => {
    if (isRare(input)) taken.push(new Uint8Array(2 ** 28));
  }),
  planted('greedy-objects', (input) => {
    for (const held: unknown[] = []; isRare(input);) held.push(Array.from({ length: 1000 }, (_, index) => [index]));
  }),
  planted('pollution', (input) => {
    // oxlint-disable-next-line no-extend-native -- the fault that is to be found
    if (isRare(input)) Object.defineProperty(Object.prototype, 'polluted', { value: 1, configurable: true });
  }),
];
