import { defineConfig } from "vitest/config";

// plain functions in plain Node.js, in one worker: what needs a page is tested in a real one (tests/browser)
export default defineConfig({
  test: { include: ["tests/**/*.test.ts"], pool: "threads", maxWorkers: 1, isolate: false },
});
