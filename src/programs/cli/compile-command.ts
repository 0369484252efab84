// weftline compile: compiles GPU kernels ahead of time into a folder that machines without NVRTC run from.
import type { Command } from 'commander';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { type CompiledVariant, writeBundle } from '../../device/cuda/jit/aot-bundle.ts';
import { parseArchitecture } from '../../device/cuda/device-properties.ts';
import { KernelCompiler } from '../../device/cuda/jit/kernel-compiler.ts';
import { openNvrtc } from '../../native/nvrtc.ts';
import { readSettings } from '../../settings/settings.ts';
import { addOutputOptions, Output, type OutputFlags } from './output.ts';
import { addSettingOptions } from './setting-options.ts';
import {
  kernelFiles,
  type ShapeConstant,
  shapeConstants,
  variantName,
  variantsOf,
} from '../../device/cuda/kernel-files.ts';

interface CompileOptions extends OutputFlags, Readonly<Record<string, unknown>> {
  readonly arch: readonly string[];
  readonly out: string;
}

export function addCompileCommand(program: Command): void {
  const command = program
    .command('compile')
    .summary('compile GPU kernels ahead of time')
    .description(
      'Fills a folder with compiled GPU kernels. A machine without NVRTC runs from it with --aot-folder (or\n' +
        'WEFTLINE_AOT_FOLDER); with --use-aot it never compiles. Needs NVRTC, but no GPU.',
    )
    .requiredOption('--arch <names...>', 'architectures, as sm_90')
    .requiredOption('--out <folder>', 'where the kernels go; what is there already stays');
  for (const [name, { option, sentence }] of Object.entries(shapeConstants)) {
    command.option(`--${option} <numbers...>`, `${sentence} (${name}), one or several`);
  }
  command.addHelpText(
    'after',
    `
Examples:
  weftline compile --arch sm_90 --hidden 7168 --topk 8 --ranks 4 8 --out kernels-h200`,
  );
  addOutputOptions(command);
  addSettingOptions(command, ['nvrtcPath']);
  command.action(compile);
}

async function compile(options: CompileOptions): Promise<void> {
  const output = new Output(options);
  const { nvrtcPath } = readSettings();
  const nvrtc = openNvrtc(nvrtcPath);
  const shapes = readShapes(options);
  const cacheFolder = mkdtempSync(join(tmpdir(), 'weftline-compile-'));
  const compiled: CompiledVariant[] = [];
  try {
    for (const architecture of options.arch.map(parseArchitecture)) {
      const compiler = new KernelCompiler({ architecture, cacheFolder, openCompiler: () => nvrtc });
      for (const file of Object.values(kernelFiles)) {
        for (const values of variantsOf(file, shapes)) {
          const cubin = await compiler.cubin(file, values);
          compiled.push({ file, values, architecture, sources: compiler.sources(file, values), cubin });
          output.line(`${variantName(file, values)} for ${architecture}: ${cubin.length} bytes`);
        }
      }
    }
  } finally {
    rmSync(cacheFolder, { recursive: true, force: true });
  }
  writeBundle(options.out, nvrtc.version, compiled);
  const kernels = compiled.map(({ file, values, architecture, cubin }) => ({
    name: variantName(file, values),
    architecture,
    bytes: cubin.length,
  }));
  const document = { schema: 'weftline.compile/1', folder: options.out, kernels };
  output.report(`${compiled.length} kernel files in ${options.out}\n`, document);
}

/** A shape that is not given leaves the examples that each file names. */
function readShapes(options: CompileOptions): Partial<Record<ShapeConstant, number[]>> {
  const shapes: Partial<Record<ShapeConstant, number[]>> = {};
  for (const [name, { option }] of Object.entries(shapeConstants)) {
    const words = options[option] as readonly string[] | undefined;
    if (words !== undefined) shapes[name as ShapeConstant] = words.map(Number);
  }
  return shapes;
}
