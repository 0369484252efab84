// Memory that is allocated, used by a peer and taken back, again and again, leaves nothing behind on either side.
import { oneStagedConfiguration } from './support/agent-configurations.ts';
import { testMemoryCycles } from './support/memory-cycles-case.ts';

for (const configuration of oneStagedConfiguration()) await testMemoryCycles(configuration);
