// Loses the device by an illegal access, then prints what each call says as JSON.
import { CudaDevice, WeftlineError } from 'weftline';
import { kernelFiles } from '#lib/device/cuda/kernel-files.js';

const report: Record<string, unknown> = {};

async function note(name: string, act: () => unknown): Promise<void> {
  try {
    await act();
    report[name] = { code: 'none' };
  } catch (error) {
    const known = error instanceof WeftlineError;
    report[name] = {
      code: known ? error.code : 'foreign',
      message: error instanceof Error ? error.message : String(error),
      sticky: known ? error.details['sticky'] : false,
    };
  }
}

const device = await CudaDevice.create();
const { selfTestFill } = await device.loadKernels(kernelFiles.selfTest);
const tensor = device.empty('u8', [16]);
const event = device.createEvent();
const plan = selfTestFill.plan({ grid: 1, block: 32 });
plan.arguments.set('words', 0x10);
plan.arguments.set('count', 1);
plan.launch();
await note('first', () => device.stream.idle());
await note('launch', () => plan.launch());
await note('empty', () => device.empty('u8', [4]));
await note('upload', () => tensor.fromHost(new Uint8Array(16)));
await note('event', () => event.record(device.stream));
tensor.close();
await note('disposed', () => device[Symbol.asyncDispose]());
process.stdout.write(`${JSON.stringify(report)}\n`);
