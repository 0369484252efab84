// Options that a call does not know are refused by name: a mistyped one would do nothing without a word.
import assert from 'node:assert/strict';
import test from 'node:test';
import { CpuDevice } from 'weftline';
import { Agent, DescriptorList, Endpoint } from 'weftline/agent';
import { EpBuffer } from 'weftline/ep';
import { Transport } from 'weftline/transport';
import { join, launch } from 'weftline/world';
import { withCode } from '../support/with-code.ts';

/** Options as a program without types gives them. */
function mistyped(options: object): never {
  return options as never;
}

function refused(got: string, meant: string): (error: unknown) => boolean {
  return withCode('WL_INVALID_ARGUMENT', `got "${got}" (did you mean ${meant}?)`);
}

test('agents and endpoints refuse unknown options', async () => {
  await assert.rejects(Agent.create('a', mistyped({ backend: ['local'] })), refused('backend', 'backends'));
  await assert.rejects(Endpoint.create(mistyped({ localGpuIdx: 1 })), refused('localGpuIdx', 'localGpuIndex'));
  const wrongSetting = mistyped({ settings: { timeoutMS: 5 } });
  await assert.rejects(Agent.create('a', wrongSetting), refused('timeoutMS', 'timeoutMs'));
  await using agent = await Agent.create('a', { backends: ['local'] });
  const memory = await agent.allocate(64);
  await assert.rejects(agent.allocate(64, mistyped({ nam: 'x' })), refused('nam', 'name'));
  assert.throws(
    () => DescriptorList.blocks(memory, mistyped({ blockBytes: 8, strides: 16 })),
    refused('strides', 'stride'),
  );
  assert.throws(() => agent.localMetadata(mistyped({ region: [] })), refused('region', 'regions'));
  await assert.rejects(
    agent.nextNotification(mistyped({ timeoutMs: 1, form: 'b' })),
    withCode('WL_INVALID_ARGUMENT', 'got "form"'),
  );
  const local = DescriptorList.of(memory);
  const lists = { operation: 'write', peer: 'b', local, remote: local };
  await assert.rejects(agent.prepare(mistyped({ ...lists, backends: 'local' })), refused('backends', 'backend'));
});

test('EpBuffer refuses unknown arguments and configuration', async () => {
  await using world = await join();
  await using device = await CpuDevice.create({ addressSpaceMiB: 64 });
  const config = { maxTokensPerRank: 4, hidden: 64, numExperts: 2, maxTopk: 1 };
  await assert.rejects(EpBuffer.create(world, device, mistyped({ ...config, numSm: 8 })), refused('numSm', 'numSms'));
  await using buffer = await EpBuffer.create(world, device, config);
  const x = device.empty('bf16', [2, 64]);
  const topkIdx = await device.tensor('i32', [2, 1], Int32Array.of(0, 1));
  const wrong = mistyped({ x, topkIdx, numWorstToken: 8 });
  await assert.rejects(buffer.dispatch(wrong), refused('numWorstToken', 'numWorstTokens'));
  const { handle, recvX } = await buffer.dispatch({ x, topkIdx });
  await assert.rejects(buffer.combine(mistyped({ x: recvX, handle, outs: x })), refused('outs', 'out'));
});

test('transports and worlds refuse unknown options', async () => {
  await assert.rejects(join(mistyped({ timeoutMS: 5 })), refused('timeoutMS', 'timeoutMs'));
  await assert.rejects(Transport.create(mistyped({ tokens: 'x' })), refused('tokens', 'token'));
  await using transport = await Transport.create();
  const address = { host: '127.0.0.1', port: 1 };
  await assert.rejects(transport.connect(address, mistyped({ timeout: 5 })), refused('timeout', 'timeoutMs'));
  await assert.rejects(
    transport.listen({ ...address, port: 0 }, mistyped({ recieve: null })),
    refused('recieve', 'receive'),
  );
});

test('a launch checks all of its options before it starts anything', async () => {
  const command = ['node', '--version'];
  for (const options of [undefined, null, 5, { command: [5], ranks: 1 }, { command: 'node', ranks: 1 }, { ranks: 1 }]) {
    await assert.rejects(
      Promise.resolve(options).then((value) => launch(value as never)),
      withCode('WL_INVALID_ARGUMENT'),
    );
  }
  await assert.rejects(launch(mistyped({ command, ranks: 1, rank: 1 })), refused('rank', 'ranks'));
});

test('groups refuse invalid waits', async () => {
  await using world = await join({ timeoutMs: 120_000 });
  for (const wait of [null, 5, 'x', { timeout: 5 }]) {
    await assert.rejects(world.split({ color: 1 }, wait as never), withCode('WL_INVALID_ARGUMENT'));
    await assert.rejects(world.group([0], wait as never), withCode('WL_INVALID_ARGUMENT'));
  }
});
