// The long run of the fuzzer, and single inputs again: node build/test/hostile/fuzz/main.js --help
import { randomInt } from 'node:crypto';
import { parseArgs } from 'node:util';
import { checkNames, numberOption } from '../support/options.ts';
import { decoders as everyDecoder } from './every-decoder.ts';
import { fuzz, shareOut } from './run-fuzz.ts';

const { values } = parseArgs({
  options: {
    count: { type: 'string', default: '10000000' },
    seed: { type: 'string' },
    decoder: { type: 'string', multiple: true, default: [] },
    covered: { type: 'string', default: '20000' },
    keep: { type: 'boolean', default: false },
    input: { type: 'string' },
    index: { type: 'string' },
    help: { type: 'boolean', default: false },
  },
});

if (values.help) {
  console.log(`--count N     inputs in all (10000000)
--seed N      of the inputs (any)
--decoder X   only those whose name holds X; may be repeated
--covered N   inputs of each decoder that run with a look at what they reach (20000)
--keep        writes inputs that reach new code to test/hostile/seeds
--index N     only input N of the decoder, with its seed
--input B64   only this input`);
  process.exit(0);
}

const seed = values.seed === undefined ? randomInt(2 ** 31) : numberOption('seed', values.seed);
const count = numberOption('count', values.count);
const index = numberOption('index', values.index ?? '0');
checkNames(
  'decoder',
  values.decoder,
  everyDecoder.map(({ name }) => name),
);
const decoders = everyDecoder.filter(
  ({ name }) => values.decoder.length === 0 || values.decoder.some((part) => name.includes(part)),
);
const covered = values.index === undefined ? numberOption('covered', values.covered) : 0;
console.log(`seed ${seed}; the same again: --seed ${seed} --count ${values.count} --covered ${covered}`);
let total = 0;
let failed = false;
const at = values.index === undefined ? {} : { from: index, to: index + 1 };
await fuzz({
  shares: shareOut(decoders, count).map((share) => ({ ...share, ...at })),
  seed,
  covered,
  keep: values.keep,
  ...(values.input === undefined ? {} : { input: values.input }),
  onReport: ({ decoder, inputs, milliseconds, faults, kept }) => {
    total += inputs;
    const each = `${((1000 * milliseconds) / Math.max(1, inputs)).toFixed(0)} us each`;
    const seconds = `${(milliseconds / 1000).toFixed(1)} s`;
    console.log(
      `${decoder.padEnd(26)} ${String(inputs).padStart(8)} inputs ${seconds.padStart(8)} ${each}, ${kept} new`,
    );
    for (const fault of faults) {
      failed = true;
      console.log(
        `FAULT ${decoder} input ${fault.index}: ${fault.what}\n  --decoder ${decoder} --input ${fault.input}`,
      );
    }
  },
});
console.log(`${total} inputs of ${decoders.length} decoders: ${failed ? 'faults were found' : 'no fault'}`);
process.exit(failed ? 1 : 0);
