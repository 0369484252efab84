// Owns a kernel that stays for ten seconds, says so, and feeds it until it is killed.
import { CudaDevice } from 'weftline';
import { DescriptorBlock, UnpackLauncher } from 'weftline/unpack';

const device = await CudaDevice.create({ cacheFolder: process.argv[2]! });
const unpacker = await UnpackLauncher.create(device, { persistent: true, idleMs: 10_000 });
const memory = device.empty('u8', [2000]);
const block = new DescriptorBlock(1).begin(
  { address: memory.address, bytes: 1000 },
  { address: memory.address + 1000, bytes: 1000 },
);
block.add(0, 1000, 0);
await unpacker.launchSync(block);
console.log('ready');
for (;;) await unpacker.launchSync(block);
