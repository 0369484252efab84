// How long collective calls take on the devices of all ranks: the median of many, of the slowest rank.
import type { CudaDevice } from 'weftline';
import type { World } from 'weftline/world';

const [WARMUP, CALLS] = [8, 30];

export interface Measured {
  readonly name: string;
  readonly sms: number;
  /** By events around the call on the device's stream; of the slowest rank. */
  readonly microseconds: number;
  readonly logicalGBps: number;
  /** Until the call returned to the host. */
  readonly hostMicroseconds: number;
}

export interface MeasuredCall {
  readonly name: string;
  readonly sms: number;
  /** What a rank receives or reads, for GB/s. */
  readonly bytes: number;
  call(): Promise<unknown>;
}

/** Collective; rank 0 prints a line. */
export async function measure(world: World, device: CudaDevice, of: MeasuredCall): Promise<Measured> {
  const { name, sms, bytes } = of;
  for (let i = 0; i < WARMUP; i++) await of.call();
  await device.stream.idle();
  await world.barrier('begin');
  const marks = Array.from({ length: CALLS }, () => [
    device.createEvent({ timing: true }),
    device.createEvent({ timing: true }),
  ]);
  const hostTimes: number[] = [];
  for (const [begin, end] of marks) {
    begin?.record(device.stream);
    const start = performance.now();
    await of.call();
    hostTimes.push((performance.now() - start) * 1000);
    end?.record(device.stream);
  }
  await device.stream.idle();
  const times = marks.map(([begin, end]) => (begin && end ? end.millisecondsSince(begin) * 1000 : 0));
  for (const event of marks.flat()) event[Symbol.dispose]();
  const all = await world.allGather('measured', { time: median(times), host: median(hostTimes), bytes });
  const microseconds = Math.max(...all.map(({ time }) => time));
  const logicalGBps = Math.min(...all.map((one) => one.bytes)) / microseconds / 1e3;
  const hostMicroseconds = Math.max(...all.map(({ host }) => host));
  if (world.rank === 0) {
    const figures = [microseconds, logicalGBps, hostMicroseconds].map((value) => value.toFixed(1).padStart(8));
    console.log(
      `${String(sms).padStart(3)} SMs  ${name.padEnd(22)} ${figures[0]} us ${figures[1]} GB/s ${figures[2]} us host`,
    );
  }
  return { name, sms, microseconds, logicalGBps, hostMicroseconds };
}

function median(values: readonly number[]): number {
  return values.toSorted((a, b) => a - b)[Math.floor(values.length / 2)] ?? 0;
}
