// Writes all small models: node build/test/support/checkpoints/main.js FOLDER, then weftline moe --model FOLDER/mixtral …
import { join } from 'node:path';
import { smallModels } from './models.ts';
import { writeCheckpoint } from './write-checkpoint.ts';

const [folder] = process.argv.slice(2);
if (folder === undefined) throw new Error('Give a folder: node build/test/support/checkpoints/main.js FOLDER');
for (const [seed, [name, model]] of Object.entries(smallModels).entries()) {
  const { folder: made, input } = await writeCheckpoint(join(folder, name), model, { tokens: 64, seed });
  console.log(`weftline moe --model ${made} --all-layers --input ${input}`);
}
