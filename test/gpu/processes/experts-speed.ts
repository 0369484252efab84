// How fast a GPU computes the experts of one rank, by our kernel and by cuBLAS: experts-speed.js [OUT.json].
//
// 16 local experts of hidden 7168 and width 2048 (one of 16 ranks of a model with 256), rows with 8 choices each of which
// an even part falls here. Times are of the device, by events around one call, the median of 20 after 3.
import { writeFileSync } from 'node:fs';
import { CudaDevice, readSettings } from 'weftline';
import { median } from '#lib/core/quantile.js';
import { findCublas } from '#lib/native/cublas.js';
import { openMoeEngine } from '#lib/programs/moe/moe-job.js';

const [experts, hidden, intermediate, columns] = [16, 7168, 2048, 8];
const [jsonPath] = process.argv.slice(2);
const device = await CudaDevice.create();
const [start, end] = [device.createEvent({ timing: true }), device.createEvent({ timing: true })];
const results: object[] = [];
for (const expertProduct of findCublas() === undefined ? (['kernel'] as const) : (['kernel', 'cublas'] as const)) {
  const engine = await openMoeEngine(device, readSettings({ expertProduct }));
  const gateUp = device.empty('bf16', [experts, 2 * intermediate, hidden]);
  const down = device.empty('bf16', [experts, hidden, intermediate]);
  // 0x3c3c is 0.0115: a product's speed depends on its values only where they are all zero.
  for (const tensor of [gateUp, down]) device.setBytes(tensor.storage, 0x3c);
  const local = engine.createExperts({ gateUp, down });
  for (const rows of [128, 512, 1024, 1536, 2048, 3072, 4096, 8192]) {
    // Each row has one choice here; expert e gets every 16th.
    const ids = Int32Array.from({ length: rows * columns }, (_, at) =>
      at % columns === 0 ? Math.floor(at / columns) % experts : -1,
    );
    const x = device.empty('bf16', [rows, hidden]);
    device.setBytes(x.storage, 0x3c);
    const input = {
      x,
      topkIdx: await device.tensor('i32', [rows, columns], ids),
      topkWeights: await device.tensor('f32', [rows, columns], new Float32Array(ids.length).fill(0.5)),
      rowsPerExpert: Array.from({ length: experts }, () => rows / experts),
    };
    const out = device.empty('bf16', [rows, hidden]);
    const times: number[] = [];
    for (let call = -3; call < 20; call += 1) {
      start.record(device.stream);
      local.forwardTokens(input, out);
      end.record(device.stream);
      await engine.finish();
      if (call >= 0) times.push(end.millisecondsSince(start));
    }
    const ms = median(times);
    const flops = rows * (2 * hidden * 2 * intermediate + 2 * intermediate * hidden);
    const result = { product: engine.product, rows, ms, teraflops: flops / ms / 1e9 };
    console.log(JSON.stringify(result));
    results.push(result);
    for (const tensor of [x, input.topkIdx, input.topkWeights, out]) tensor.close();
  }
  local[Symbol.dispose]();
  engine[Symbol.dispose]();
}
await device[Symbol.asyncDispose]();
if (jsonPath !== undefined) writeFileSync(jsonPath, `${JSON.stringify(results, undefined, 2)}\n`);
