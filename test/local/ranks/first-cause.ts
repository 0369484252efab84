// One rank stops its own process (SIGSTOP) before a call; rank 0 has less patience than the others and waits for one of them, which
// waits for the stopped one. Each prints how the call ended. Arguments: the object, the rank that stops.
import { CpuDevice, type Tensor } from 'weftline';
import { Communicator, SparseAllReduce } from 'weftline/collectives';
import { EPAll2AllLayer, EpBuffer } from 'weftline/ep';
import { ExpertMover, expertPlan } from 'weftline/ep/placement';
import { join, type World } from 'weftline/world';
import { isStopped, processFacts } from '#lib/world/watching/process-facts.js';
import { until } from '../../support/until.ts';

const [, , what = '', stoppedText = ''] = process.argv;
const world = await join();
const device = await CpuDevice.create();
const stopped = Number(stoppedText);
const timeoutMs = world.rank === 0 ? 2_000 : 120_000;
const [tokens, hidden] = [16, 64];
const numExperts = world.size;
const x = await device.tensor('bf16', [tokens, hidden], new Uint16Array(tokens * hidden));
const ids = await device.tensor(
  'i32',
  [tokens, 1],
  Int32Array.from({ length: tokens }, (_, at) => at % numExperts),
);

const pids = await world.allGather('pids', process.pid);

function stop(): void {
  console.log(`stopping ${process.pid}`);
  process.kill(process.pid, 'SIGSTOP');
}

/** The world, whose rank stops once it has told the others what the name of an exchange stands for. */
function stoppingAfter(exchange: RegExp): World {
  if (world.rank !== stopped) return world;
  return new Proxy(world, {
    get(target, property) {
      const value: unknown = Reflect.get(target, property, target);
      if (property !== 'allGather') return typeof value === 'function' ? (value.bind(target) as unknown) : value;
      return (name: string, ...rest: unknown[]): unknown => {
        const told = (value as (...all: unknown[]) => unknown).call(target, name, ...rest);
        if (exchange.test(name)) stop();
        return told;
      };
    },
  });
}

interface Looked {
  readonly call: () => Promise<unknown>;
  readonly close: () => Promise<void>;
}

/** What comes before, and the call that is looked at. */
const objects: Readonly<Record<string, () => Promise<Looked>>> = {
  async buffer() {
    const buffer = await EpBuffer.create(world, device, { maxTokensPerRank: tokens, hidden, numExperts, maxTopk: 1 });
    const { handle } = await buffer.dispatch({ x, topkIdx: ids });
    const call = () => buffer.combine({ x: buffer.combineInput(handle), handle, timeoutMs });
    return { call, close: () => buffer.close() };
  },
  async layer() {
    const layer = await EPAll2AllLayer.create(world, device, {
      maxTokensPerRank: tokens,
      hidden,
      maxTopk: 1,
      numExperts,
    });
    const { handle } = await layer.dispatch({ x, topkIdx: ids });
    const call = () => layer.combine({ x: layer.combineInput(handle), handle, timeoutMs });
    return { call, close: () => layer.close() };
  },
  async sparse() {
    const reducer = await SparseAllReduce.create(world, device, { aggregators: [2] });
    const output: Tensor<'f32'> = await device.tensor('f32', [64], new Float32Array(64).fill(1));
    const call = () => (reducer.isWorker ? reducer.allReduce({ output, timeoutMs }) : reducer.serve());
    return { call, close: () => reducer.close() };
  },
  async communicator() {
    const communicator = await Communicator.create(world, device);
    const input = await device.tensor('f32', [64], new Float32Array(64));
    const call = () => communicator.allReduce({ input, output: device.empty('f32', [64]), timeoutMs });
    return { call, close: () => communicator.close() };
  },
  links() {
    // Rank 3 has told where it is, and then answers no link. All have the same patience, as ranks link independently.
    const config = { maxTokensPerRank: tokens, hidden, numExperts, maxTopk: 1 };
    const call = () => EpBuffer.create(stoppingAfter(/^network\/ep$/), device, config, { timeoutMs: 10_000 });
    return Promise.resolve({ call, close: () => Promise.resolve() });
  },
  async mover() {
    const shape = { layers: 1, experts: numExperts, ranks: world.size };
    const plan = expertPlan({ ...shape, physicalToLogical: [0, 1, 2, 3] });
    const mover = await ExpertMover.create(stoppingAfter(/^ep\/expert-mover\/.*\/0$/), device, {
      plan,
      expertBytes: 4096,
      load: ({ bytes }) => void bytes.fill(1),
    });
    const call = async () => {
      // Rank 1 gets its expert from the stopped rank, on the other host.
      if (world.rank === 1) await until(() => isStopped(processFacts(pids[stopped]!)!), 'rank 3 stops');
      void mover
        .stage(expertPlan({ ...shape, physicalToLogical: [0, 3, 2, 1] }), { timeoutMs: 120_000 })
        .catch(() => undefined);
      return mover.cutOver({ timeoutMs });
    };
    return { call, close: () => mover.close() };
  },
};

/** Objects whose rank stops within the call. */
const stopsItself = new Set(['mover', 'links']);
const { call, close } = await objects[what]!();
await world.barrier('ready');
if (world.rank === stopped && !stopsItself.has(what)) stop();
try {
  await call();
  console.log(JSON.stringify({ code: 'none' }));
} catch (error) {
  const { code, message, details } = error as { code: string; message: string; details: unknown };
  console.log(JSON.stringify({ code, message, details }));
}
await close();
await world.close();
